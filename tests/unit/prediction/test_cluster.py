"""A user's own scale of a cluster: made from measured steps, applied to answers, named wherever it counts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from perfsim.base.errors import CatalogError
from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.evidence.own_runs import fit_cluster
from perfsim.specs.calibration import ClusterCalibration
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec, digests

MODEL = {
    "num_layers": 4,
    "hidden_size": 1024,
    "ffn_hidden_size": 4096,
    "num_attention_heads": 16,
    "vocab_size": 51200,
    "seq_length": 1024,
}
FEW = ["run", "--model", "gpt3_xl", "--system", "cs-2", "--devices", "1", "--strategy", "weight-streaming"]
FEW += ["--batch", "8"]


def case(name: str, devices: int, measured_s: float, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "system": {"device": "dgx-a100-80gb", "num_devices": devices},
        "model": MODEL,
        "strategy": "3d",
        "parallel": {"data": devices},
        "training": {"micro_batch_size": 1, "global_batch_size": 2 * devices, "recompute": "none"},
        "measured": {"step_time_s": measured_s},
    } | changes


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of measured steps."""

    def write(*cases: dict[str, Any]) -> Path:
        path = tmp_path / "measured.yaml"
        path.write_text(json.dumps({"schema": 1, "cluster": "ours", "cases": cases}, indent=1), "utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Unscaled predictions of the cases on 1 and on 8 devices."""
    path = tmp_path_factory.mktemp("predicted") / "p.yaml"
    cases = [case("one", 1, 0.03), case("eight", 8, 0.03)]
    path.write_text(json.dumps({"schema": 1, "cluster": "c", "cases": cases}), "utf-8")
    return [step.predicted_s for step in fit_cluster([path]).cases]


def on_wafers(folder: Path, device: str = "wse-2") -> Path:
    """A finished calibration of wafers, which answer in milliseconds."""
    step = {"measured_s": "1.25 s", "predicted_s": "1 s", "residual": 0.0}
    cases = [{"id": "a", **step}, {"id": "b", **step}]
    path = folder / "our-wafers.yaml"
    content = {"name": "our-wafers", "kind": "cluster", "device": device, "scale": 1.25, "cases": cases}
    path.write_text(json.dumps(content), "utf-8")
    return path


def perfsim(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


# ---------------------------------------------------------------------------------- making a scale
@pytest.mark.parametrize("slower", [(1.1, 1.1), (1.2, 0.9)])
def test_the_scale_is_the_geometric_mean_so_that_log_errors_cancel(
    measured: Callable[..., Path], predicted: list[float], slower: tuple[float, float]
) -> None:
    one_s, eight_s = (factor * step_s for factor, step_s in zip(slower, predicted, strict=True))
    found = fit_cluster([measured(case("one", 1, one_s), case("eight", 8, eight_s))])
    assert found.scale == pytest.approx(math.sqrt(math.prod(slower)), rel=1e-3)
    assert sum(math.log1p(step.residual) for step in found.cases) == pytest.approx(0.0, abs=1e-3)
    spread = math.log(slower[0] / slower[1]) / 2
    assert found.fit["scale"].standard_errors["scale"] == pytest.approx(spread, rel=1e-3, abs=1e-3)
    assert (found.name, found.device, found.is_wide) == ("ours", "a100-sxm4-80gb", spread > 0.1)
    assert found.fit["scale"].command == "perfsim calibrate steps measured.yaml"
    assert found.fit["scale"].points == 2


@pytest.mark.parametrize("slower", [1.2, 1.02])
def test_what_is_written_is_what_is_read_and_cases_far_apart_are_warned_of(
    measured: Callable[..., Path], predicted: list[float], tmp_path: Path, slower: float
) -> None:
    path = measured(case("one", 1, slower * predicted[0]), case("eight", 8, predicted[1]))
    answer = perfsim("calibrate", "steps", path, "--out", tmp_path / "ours.yaml")
    assert answer.exit_code == 0
    found = default_catalog().calibration(str(tmp_path / "ours.yaml"))
    assert found == fit_cluster([path])
    assert isinstance(found, ClusterCalibration)
    assert found.spread == pytest.approx(slower - 1, rel=1e-2)
    far = slower > 1.1
    assert (f"warning: {found.spread_warning}" in answer.stderr) == far == ("warning" in answer.stderr)
    assert ("20.0 % apart" in found.fit["scale"].note) == far


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([("one", 1, 1.0, {})], "measured steps: 1; at least 2 are needed"),
        ([("one", 1, 1.0, {}), ("one", 1, 1.0, {})], "2 cases are called one"),
        (
            [("one", 1, 1.0, {}), ("b", 8, 1.0, {"system": {"device": "dgx-h100", "num_devices": 8}})],
            "a scale belongs to one device",
        ),
        (
            [("one", 1, 1.0, {}), ("wrong", 8, 1.0, {"parallel": {"data": 3}})],
            "case wrong cannot be predicted",
        ),
        ([("one", 1, 1e5, {}), ("two", 2, 1e5, {})], r"times as long as predicted; .* is 0\.2 to 5"),
        *(([("one", 1, wrong, {}), ("two", 1, 1.0, {})], "step_time_s") for wrong in (0, -1, "fast")),
    ],
)
def test_steps_that_make_no_scale_are_refused_at_their_place(
    measured: Callable[..., Path], steps: list[tuple[str, int, Any, dict[str, Any]]], message: str
) -> None:
    with pytest.raises(CatalogError, match=message) as caught:
        fit_cluster([measured(*(case(name, n, s, **changes) for name, n, s, changes in steps))])
    assert caught.value.problems[0].line > 0


def test_steps_on_the_system_of_a_file_have_its_network(
    measured: Callable[..., Path], tmp_path: Path
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "name: own\nextends: dgx-a100-80gb\nnode: {nic: {name: thin, bandwidth: 10 Gb/s, latency: 1 us}}\n"
    )
    cases = [
        case(f"{n} on {name}", n, 0.1, system={"device": name, "num_devices": n})
        for n in (8, 16)
        for name in (str(own), "dgx-a100-80gb")
    ]
    inside, same, slow, fast = (step.predicted_s for step in fit_cluster([measured(*cases)]).cases)
    assert inside == same
    assert slow > 1.5 * fast


# --------------------------------------------------------------------------------- using a scale
def test_a_run_is_stretched_as_a_whole_and_says_by_what(tmp_path: Path) -> None:
    path = on_wafers(tmp_path)
    plain = json.loads(perfsim(*FEW, "--json").output)
    scaled = json.loads(perfsim(*FEW, "--json", "--cluster", path).output)
    assert plain["cluster_calibration"] is None
    assert scaled["cluster_calibration"].items() >= {"name": "our-wafers", "scale": 1.25}.items()
    assert scaled["step_time_s"] == pytest.approx(1.25 * plain["step_time_s"], rel=1e-12)
    assert scaled["mfu"] == pytest.approx(plain["mfu"] / 1.25, rel=1e-12)
    assert scaled["bubble_fraction"] == pytest.approx(plain["bubble_fraction"], abs=1e-9)
    parts = {name: 1.25 * seconds for name, seconds in plain["step_breakdown_s"].items()}
    assert scaled["step_breakdown_s"] == pytest.approx(parts, rel=1e-9, abs=1e-12)
    assert "multiplied by 1.25: cluster calibration our-wafers" in perfsim(*FEW, "--cluster", path).output


def test_a_scale_of_another_device_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    for given, said in (
        (on_wafers(tmp_path, "a100-sxm4-80gb"), "was measured on a100-sxm4-80gb; cs-2 is built of wse-2"),
        ("wse-2", "calibration wse-2 is not of kind cluster"),
    ):
        refused = perfsim(*FEW, "--cluster", given)
        assert refused.exit_code == 2
        assert said in refused.stderr


@pytest.fixture
def scaled_study(tmp_path: Path, write_sweep: Callable[[str], Path]) -> Path:
    """The small study with its candidate's steps scaled; the sweep next to it uses it."""
    on_wafers(tmp_path)
    write_sweep("  devices: [1, 2]")
    path = tmp_path / "study.yaml"
    text = path.read_text("utf-8")
    scaled = text.replace("devices: [1]}", "devices: [1], cluster_calibration: ./our-wafers.yaml}")
    assert scaled != text
    path.write_text(scaled, "utf-8")
    return path


def test_a_study_and_its_sweep_name_the_scale_in_every_form_of_their_answers(
    scaled_study: Path, tmp_path: Path
) -> None:
    spec = load_study(str(scaled_study))
    candidate = spec.candidates[0]
    assert isinstance(candidate.cluster_calibration, ClusterCalibration)

    def with_scale(scale: ClusterCalibration | None) -> StudySpec:
        changed = candidate.model_copy(update={"cluster_calibration": scale})
        return spec.model_copy(update={"candidates": (changed,)})

    result = run_study(spec)
    plain = run_study(with_scale(None))
    ratio = result.candidates[0].step_time_s / plain.candidates[0].step_time_s
    assert ratio == pytest.approx(1.25, rel=1e-12)
    other = candidate.cluster_calibration.model_copy(update={"scale": 1.3})
    assert digests([with_scale(other)])[0] != digests([spec])[0], "another scale is another question"
    assert any("cluster calibration our-wafers" in caveat.text for caveat in result.candidates[0].caveats)
    assert [row.name for row in result.assumptions if row.topic == "calibration our-wafers"] == ["scale"]
    out = tmp_path / "report"
    answer = perfsim("study", scaled_study, "--out", out)
    assert "cluster calibration our-wafers" in answer.output
    assert "cluster calibration our-wafers" in (out / "index.html").read_text("utf-8")
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert summary["candidates"][0]["cluster_calibration"]["name"] == "our-wafers"
    sweep = ("sweep", tmp_path / "tiny.yaml", "--out", out, "--jobs", "1")
    answer = perfsim(*sweep)
    assert answer.exit_code == 0, answer.output
    assert "cluster calibration our-wafers" in " ".join(answer.output.split())
    assert "our-wafers" in (out / "index.html").read_text("utf-8")
    document = json.loads(perfsim(*sweep, "--json").stdout)
    assert [point["cluster_calibration"]["scale"] for point in document["points"]] == [1.25, 1.25]
