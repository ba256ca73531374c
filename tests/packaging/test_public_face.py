"""What users import: documented names with types, and only the libraries that a verb needs."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import perfsim as ps

USER_FILE = """
import perfsim as ps
from perfsim import Catalog, PerfsimError, Study


def main() -> float:
    answer = ps.study("gpt3_20b", compare=["3d"])
    fields = ps.study({"extends": "gpt3_20b", "batch_sizes": [64]})
    step = ps.predict(model=Catalog().model("gpt3_20b").with_(num_layers=48), system="cs-2", devices=4)
    try:
        points = ps.sweep("capacity_20b").points
    except PerfsimError as error:
        raise SystemExit([problem.message for problem in error.problems]) from None
    shares: float = sum(step.breakdown_s.values()) + points[0].target_time.time_s + fields.best.mfu
    median: float = ps.validate("cases.yaml").summary["median_ape"]
    study: Study | None = None
    assert study is None
    return shares + answer.ratio("16 CS-2").high + answer.candidates[0].step_time_s + median
"""


def test_every_public_name_is_found_and_documented_and_no_other() -> None:
    for name in dir(ps):
        value = getattr(ps, name)
        assert name == "__version__" or value.__doc__
    with pytest.raises(AttributeError, match="'perfsim' has no attribute 'studdy'"):
        _ = ps.studdy


@pytest.mark.parametrize("before", ["", "import perfsim.studies.runner, perfsim.studies.loading"])
def test_study_and_sweep_are_functions_whatever_was_imported_before(
    must_run: Callable, repository: Path, before: str
) -> None:
    probe = f"{before}\nimport perfsim as ps\nassert callable(ps.study) and callable(ps.sweep)"
    must_run(sys.executable, "-c", probe, cwd=repository)


@pytest.mark.slow
def test_a_users_file_passes_mypy_strict(must_run: Callable, tmp_path: Path, repository: Path) -> None:
    (tmp_path / "user.py").write_text(USER_FILE, encoding="utf-8")
    # mypy does not follow the import hook of an editable install, so the checkout is put on the path.
    strict = ("-m", "mypy", "--strict", "--config-file=", "user.py")
    must_run(sys.executable, *strict, cwd=tmp_path, PYTHONPATH=repository)


HEAVY = {"jinja2", "networkx", "numpy", "pandas", "plotly", "pydantic", "scipy", "simpy", "yaml"}


RUN = (
    *("run", "--model", "gpt3_xl", "--system", "dgx-a100-80gb", "--devices", "8", "--batch", "64"),
    *("--strategy", "3d", "--layout", "tp=1,pp=1,dp=8,mbs=1"),
)
FORMATS_AND_STUDIES = {"perfsim.interop.formats", "perfsim.studies"}


@pytest.mark.parametrize(
    ("arguments", "needed", "spared"),
    [
        (("--help",), set(), HEAVY),
        (("show", "systems", "dgx-a100-80gb"), set(), HEAVY - {"pydantic", "yaml"}),
        (RUN, {"numpy"}, {"jinja2", "pandas", "plotly", "scipy"} | FORMATS_AND_STUDIES),
    ],
    ids=["help", "show", "run"],
)
def test_the_package_and_a_verb_load_only_the_libraries_that_they_need(
    must_run: Callable, repository: Path, arguments: tuple[str, ...], needed: set[str], spared: set[str]
) -> None:
    probe = (
        "import sys\nfrom perfsim.cli import main\n"
        f"sys.argv = ['perfsim', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print('exit code', end.code or 0)\n"
        "print('loaded', *sys.modules)\n"
    )
    *_, code, modules = must_run(sys.executable, "-c", probe, cwd=repository).stdout.splitlines()
    assert code == "exit code 0"
    loaded = set(modules.split())
    assert {"perfsim", "perfsim.cli", *needed} <= loaded
    assert not {name for name in loaded if name.startswith(tuple(f"{room}." for room in spared))}
    assert not spared & loaded, "import these inside the verb that needs them"
