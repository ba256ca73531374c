"""A user's own scale of a cluster: made from measured steps, applied to answers, named wherever it counts."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import perfsim as ps
from perfsim.base.errors import CatalogError
from perfsim.catalog import default_catalog
from perfsim.cli import main
from perfsim.evidence.cases import StepCase, published_cases
from perfsim.evidence.own_runs import fit_cluster
from perfsim.prediction.bands import Accuracy
from perfsim.specs.calibration import ClusterCalibration
from perfsim.studies.loading import load_study
from perfsim.studies.runner import run_study
from perfsim.studies.spec import StudySpec, digests

SIZES = {"hidden_size": 1024, "ffn_hidden_size": 4096, "vocab_size": 51200, "seq_length": 1024}
MODEL = {"num_layers": 4, "num_attention_heads": 16, **SIZES}
STEP = "run --model gpt3_xl --system cs-2 --devices 1 --strategy weight-streaming --batch 8"


def case(name: str, devices: int, measured_s: Any, **changes: Any) -> dict[str, Any]:
    return {
        "id": name,
        "system": {"device": "dgx-a100-80gb", "num_devices": devices},
        "model": MODEL,
        "strategy": "3d",
        "parallel": {"data": devices},
        "training": {"micro_batch_size": 1, "global_batch_size": 2 * devices, "recompute": "none"},
        "measured": {"step_time_s": measured_s},
    } | changes


def measured(folder: Path, *cases: dict[str, Any]) -> Path:
    """A file of measured steps."""
    path = folder / "measured.yaml"
    path.write_text(json.dumps({"schema": 1, "cluster": "ours", "cases": cases}, indent=1), "utf-8")
    return path


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Unscaled predictions of the cases on 1 and on 8 devices."""
    path = measured(tmp_path_factory.mktemp("predicted"), case("one", 1, 0.03), case("eight", 8, 0.03))
    return [step.predicted_s for step in fit_cluster([path]).cases]


def on_wafers(folder: Path, device: str = "wse-2", scale: float = 1.25) -> Path:
    """A finished calibration of wafers, which answer in milliseconds."""
    step = {"measured_s": "1.25 s", "predicted_s": "1 s", "residual": 0.0}
    cases = [{"id": "a", **step}, {"id": "b", **step}]
    path = folder / "our-wafers.yaml"
    content = {"name": "our-wafers", "kind": "cluster", "device": device, "scale": scale, "cases": cases}
    path.write_text(json.dumps(content), "utf-8")
    return path


def perfsim(line: str, *paths: Path) -> Result:
    """The answer of a verb; a `{}` of its line is a path."""
    return CliRunner().invoke(main, line.format(*paths).split())


def test_a_step_without_software_is_predicted_as_run_predicts_it(predicted: list[float]) -> None:
    model = StepCase.model_validate(case("eight", 8, 0.03) | {"family": "mine", "evidence": "A"}).model
    asked = {"system": "dgx-a100-80gb", "devices": 8, "batch": 16, "layout": "dp=8,mbs=1,recompute=none"}
    step = ps.predict(model=model, **asked, **{"recipe.seq_length": 1024, "recipe.precision": "fp16"})
    assert step.step_time_s == pytest.approx(predicted[1], rel=1e-5)


def test_a_scale_that_makes_more_flops_than_the_devices_have_is_serious(tmp_path: Path) -> None:
    line = "run --model gpt3_xl --system cs-2 --devices 1 --batch 64 --cluster {} --json"
    answer = perfsim(line, on_wafers(tmp_path, scale=0.1))
    said = [known for known in json.loads(answer.stdout)["caveats"] if known["code"] == "cluster-scaled"]
    assert said[0]["severity"] == "serious"
    assert said[0]["text"].endswith("an MFU above 100 % cannot be: other software ran its steps")


@pytest.mark.parametrize("slower", [(1.1, 1.1), (1.2, 0.9)])
def test_the_scale_is_the_geometric_mean_so_that_log_errors_cancel(
    tmp_path: Path, predicted: list[float], slower: tuple[float, float]
) -> None:
    one_s, eight_s = (factor * step_s for factor, step_s in zip(slower, predicted, strict=True))
    fitted = fit_cluster([measured(tmp_path, case("one", 1, one_s), case("eight", 8, eight_s))])
    assert fitted.scale == pytest.approx(math.sqrt(math.prod(slower)), rel=1e-3)
    assert sum(math.log1p(step.residual) for step in fitted.cases) == pytest.approx(0.0, abs=1e-3)
    spread = math.log(slower[0] / slower[1]) / 2
    assert fitted.fit["scale"].standard_errors["scale"] == pytest.approx(spread, rel=1e-3, abs=1e-3)
    assert (fitted.name, fitted.device, fitted.is_wide) == ("ours", "a100-sxm4-80gb", spread > 0.1)
    assert fitted.fit["scale"].command == "perfsim calibrate steps measured.yaml"
    assert fitted.fit["scale"].points == 2


def test_the_file_that_is_fitted_is_also_one_to_compare_with(tmp_path: Path, predicted: list[float]) -> None:
    path = measured(tmp_path, case("one", 1, 2 * predicted[0]), case("eight", 8, 2 * predicted[1]))
    answer = perfsim("validate {} --json", path)
    assert answer.exit_code == 0, answer.output
    runs = json.loads(answer.stdout)["cases"]
    assert [run["error"] for run in runs] == pytest.approx([-0.5, -0.5], abs=1e-3)


def test_a_published_run_names_its_family_and_how_far_it_is_trusted() -> None:
    for path in published_cases():
        for run in yaml.safe_load(path.read_text("utf-8"))["cases"]:
            assert run["family"], run["id"]
            assert "evidence" in run or "points" in run, run["id"]


@pytest.mark.parametrize("slower", [1.2, 1.02])
def test_a_scale_reads_back_and_far_cases_warn(predicted: list[float], tmp_path: Path, slower: float) -> None:
    path = measured(tmp_path, case("one", 1, slower * predicted[0]), case("eight", 8, predicted[1]))
    answer = perfsim("calibrate steps {} --out {}/ours.yaml", path, tmp_path)
    assert answer.exit_code == 0
    fitted = default_catalog().load("calibration", str(tmp_path / "ours.yaml"))
    assert fitted == fit_cluster([path])
    assert fitted.spread == pytest.approx(slower - 1, rel=1e-2)
    far = slower > 1.1
    assert (f"warning: {fitted.note}" in answer.stderr) == far == ("warning" in answer.stderr)
    assert ("20.0 % apart" in fitted.fit["scale"].note) == far


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([case("one", 1, 1.0)], "measured steps: 1; at least 2 are needed"),
        ([case("one", 1, 1.0)] * 2, "2 cases are called one"),
        (
            [case("one", 1, 1.0), case("b", 8, 1.0, system={"device": "dgx-h100", "num_devices": 8})],
            "a scale belongs to one device",
        ),
        ([case("one", 1, 1.0), case("bad", 8, 1.0, parallel={"data": 3})], "case bad cannot be predicted"),
        ([case("one", 1, 1e5), case("two", 2, 1e5)], r"times as long as predicted; .* is 0\.2 to 5"),
        *(([case("one", 1, wrong), case("two", 1, 1.0)], "step_time_s") for wrong in (0, -1, "fast")),
    ],
)
def test_steps_without_a_scale_are_refused(tmp_path: Path, cases: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(CatalogError, match=message) as caught:
        fit_cluster([measured(tmp_path, *cases)])
    assert caught.value.problems[0].line > 0


def test_steps_on_the_system_of_a_file_have_its_network(tmp_path: Path) -> None:
    thin = tmp_path / "thin.yaml"
    nic = "{name: thin, bandwidth: 10 Gb/s, latency: 1 us}"
    thin.write_text(f"name: thin\nextends: dgx-a100-80gb\nnode: {{nic: {nic}}}\n")
    cases = [
        case(f"{n} on {name}", n, 0.1, system={"device": name, "num_devices": n})
        for n in (8, 16)
        for name in (str(thin), "dgx-a100-80gb")
    ]
    inside, same, slow, fast = (step.predicted_s for step in fit_cluster([measured(tmp_path, *cases)]).cases)
    assert inside == same
    assert slow > 1.5 * fast


def test_a_run_is_stretched_as_a_whole_and_says_by_what(tmp_path: Path) -> None:
    path = on_wafers(tmp_path)
    plain = json.loads(perfsim(f"{STEP} --json").output)
    scaled = json.loads(perfsim(f"{STEP} --json --cluster {{}}", path).output)
    assert plain["cluster_calibration"] is None
    assert scaled["cluster_calibration"].items() >= {"name": "our-wafers", "scale": 1.25}.items()
    assert scaled["step_time_s"] == pytest.approx(1.25 * plain["step_time_s"], rel=1e-12)
    assert scaled["mfu"] == pytest.approx(plain["mfu"] / 1.25, rel=1e-12)
    assert scaled["bubble_fraction"] == pytest.approx(plain["bubble_fraction"], abs=1e-9)
    parts = {name: 1.25 * seconds for name, seconds in plain["step_breakdown_s"].items()}
    assert scaled["step_breakdown_s"] == pytest.approx(parts, rel=1e-9, abs=1e-12)
    told = perfsim(f"{STEP} --cluster {{}}", path).output
    assert "multiplied by 1.25: cluster calibration our-wafers" in told


def test_a_scale_of_another_framework_warns_and_makes_no_narrow_range(tmp_path: Path) -> None:
    cluster = fit_cluster([measured(tmp_path, case("a", 8, 0.03), case("b", 16, 0.031))])
    assert cluster.frameworks == ("megatron-core-te",)
    asked = {"model": "gpt3_xl", "system": "dgx-a100-80gb", "devices": 8, "batch": 32, "layout": "dp=8,mbs=1"}
    runtimes = ("megatron_core", "megatron_2021")
    same, other = (ps.predict(**asked, cluster=cluster, runtime=name) for name in runtimes)
    said = [{caveat.code: caveat for caveat in step.caveats}["cluster-scaled"] for step in (same, other)]
    assert [caveat.severity for caveat in said] == ["info", "warning"]
    assert "ran under megatron-core-te" in said[1].text
    assert other.run.accuracy == Accuracy.of(other.run.plan, other.run.trace.hidden_share)


def test_a_scale_of_another_device_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    for given, said in (
        (on_wafers(tmp_path, "a100-sxm4-80gb"), "was measured on a100-sxm4-80gb; cs-2 is built of wse-2"),
        ("wse-2", "calibration wse-2 is not of kind cluster"),
    ):
        refused = perfsim(f"{STEP} --cluster {given}")
        assert refused.exit_code == 2
        assert said in refused.stderr


def test_study_and_sweep_name_a_scale_everywhere(tmp_path: Path, write_sweep: Callable[[str], Path]) -> None:
    """The small study with its candidate's steps scaled; the sweep next to it uses it."""
    on_wafers(tmp_path)
    sweep = write_sweep("  devices: [1, 2]")
    study = tmp_path / "study.yaml"
    text = study.read_text("utf-8")
    study.write_text(text.replace("devices: [1]}", "devices: [1], cluster_calibration: ./our-wafers.yaml}"))
    spec = load_study(str(study))
    candidate = spec.candidates[0]

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
    answer = perfsim("study {} --out {}", study, out)
    assert "cluster calibration our-wafers" in answer.output
    assert "cluster calibration our-wafers" in (out / "index.html").read_text("utf-8")
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert summary["candidates"][0]["cluster_calibration"]["name"] == "our-wafers"
    answer = perfsim("sweep {} --out {} --jobs 1", sweep, out)
    assert answer.exit_code == 0, answer.output
    assert "cluster calibration our-wafers" in " ".join(answer.output.split())
    assert "our-wafers" in (out / "index.html").read_text("utf-8")
    document = json.loads(perfsim("sweep {} --out {} --jobs 1 --json", sweep, out).stdout)
    assert [point["cluster_calibration"]["scale"] for point in document["points"]] == [1.25, 1.25]


def test_the_band_follows_how_far_the_measured_steps_lie_apart() -> None:
    """Of very many steps that scatter by a standard deviation the band is a normal's."""
    published = Accuracy("3d", "family", 10, *[0.1] * 4, step_time_error=0.1)
    close, far = ([0.005, -0.005] * 5, [0.3, -0.23] * 5)
    assert published.among(close).step_time_error < published.step_time_error / 1.4
    assert published.among(close[:2]).step_time_error < published.step_time_error
    assert published.among(far).step_time_error > 1.5 * published.step_time_error
    many = published.among([math.exp(0.1) - 1, math.exp(-0.1) - 1] * 5000)
    assert math.log1p(many.step_time_error) == pytest.approx(1.645 * 0.1, rel=1e-3)
