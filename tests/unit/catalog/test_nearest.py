"""GPUs and links without a calibration have that of the nearest one, and answers say so."""

import re
from pathlib import Path

import pytest

import perfsim as ps
from perfsim.base.errors import CatalogError
from perfsim.catalog import Catalog
from perfsim.specs.hardware import DeviceSpec

DEVICE = """
name: {name}
kind: gpu
peak: {{{peak}}}
memory: {{capacity: 100 GB, bandwidth: {bandwidth}}}
compute_units: 100
"""


def described(folder: Path, peak: str, bandwidth: str) -> DeviceSpec:
    path = folder / "new.yaml"
    path.write_text(DEVICE.format(name="new", peak=peak, bandwidth=bandwidth))
    return Catalog().device(str(path))


def from_the_tutorial(folder: Path) -> Path:
    """The data sheet of the tutorial that is one file."""
    text = (Path(__file__).parents[3] / "docs/tutorials/own_hardware.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml file=in-one-file.yaml\n(name: my-cluster\n.*?)```", text, re.DOTALL)
    assert len(block[1].splitlines()) < 25
    path = folder / "my-cluster.yaml"
    path.write_text(block[1])
    return path


def test_a_gpu_of_no_file_goes_from_its_data_sheet_to_an_answer_with_a_band(tmp_path: Path) -> None:
    answer = ps.predict(model="gpt3_xl", system=str(from_the_tutorial(tmp_path)), devices=16)
    known = ps.predict(model="gpt3_xl", system="dgx-h100", devices=16)
    assert 0.5 < answer.step_time_s / known.step_time_s < 0.75
    assert answer.band_s[1] / answer.step_time_s > known.band_s[1] / known.step_time_s
    said = [f"{caveat.code}: {caveat.text}" for caveat in answer.caveats]
    assert any(text.startswith("calibration-borrowed: no measurement of x100") for text in said)
    for link in ("x100-link", "x100-nic"):
        assert any(text.startswith(f"link-borrowed: collectives on {link}") for text in said)


@pytest.mark.parametrize(
    ("peak", "bandwidth", "nearest"),
    [
        ("fp16: 125 TFLOP/s", "900 GB/s", "a100"),
        ("bf16: 800 TFLOP/s", "3 TB/s", "a100"),
        ("bf16: 148 TFLOP/s, fp8: 296 TFLOP/s", "4 TB/s", "h100"),
        ("bf16: 2250 TFLOP/s, fp8: 4500 TFLOP/s", "8 TB/s", "h200"),
        ("bf16: 2250 TFLOP/s, fp8: 4500 TFLOP/s, nvfp4: 9000 TFLOP/s", "8 TB/s", "b"),
    ],
)
def test_generation_decides_before_figures(tmp_path: Path, peak: str, bandwidth: str, nearest: str) -> None:
    device = described(tmp_path, peak, bandwidth)
    assert device.calibration.name.startswith(nearest)
    assert nearest in device.assumed["calibration"]


def test_rates_of_a_borrowed_link_are_scaled_by_its_bandwidth(tmp_path: Path) -> None:
    system = Catalog().system(str(from_the_tutorial(tmp_path)))
    link = system.node.scale_up
    measured = Catalog().load("link", "nvlink4")
    calibrations = (link.calibration, measured.calibration)
    ours, theirs = (calibration.collectives["all_gather"][-1] for calibration in calibrations)
    assert ours.bandwidth_bytes_per_s == pytest.approx(theirs.bandwidth_bytes_per_s * 600 / 450)
    assert ours.latency_base_s == theirs.latency_base_s
    assert system.node.nic.calibration is not None
    assert system.node.nic.calibration.network is not None


def test_figures_from_memory_are_said() -> None:
    answer = ps.predict(model="gpt3_xl", system="mi300x-192gb", devices=8)
    said = [caveat.text for caveat in answer.caveats if caveat.code == "data-sheet-unread"]
    assert any("peak of mi300x-192gb" in text for text in said)
    assert any("bandwidth of xgmi-mi300" in text for text in said)


@pytest.mark.parametrize(("written", "meant"), [("8 Tb/s", "8 TB/s"), ("64 Tbit/s", "64 TB/s")])
def test_memory_in_bits_is_refused_with_the_likely_meaning(tmp_path: Path, written: str, meant: str) -> None:
    with pytest.raises(CatalogError, match=f"'{written}' counts bits(.|\n)*did you mean '{meant}'"):
        described(tmp_path, "bf16: 1 PFLOP/s", written)


def test_the_part_of_a_chip_with_more_power_is_no_slower() -> None:
    asked = {"model": "llama3_8b", "devices": 8, "batch": 64, "layout": "dp=8,mbs=2,zero=1"}
    steps_s = [ps.predict(system=f"mi35{part}x-288gb", **asked).step_time_s for part in (0, 5)]
    assert steps_s[0] > steps_s[1]


def test_a_name_that_begins_as_those_of_a_maker_is_not_run_by_its_software(tmp_path: Path) -> None:
    path = from_the_tutorial(tmp_path)
    path.write_text(path.read_text().replace("name: x100,", "name: mint,"))
    answer = ps.predict(model="gpt3_xl", system=str(path), devices=16, layout="dp=16,mbs=8")
    assert answer.run.plan.job.runtime.name == "megatron_core", "and not AMD's, of mi300x"


EXTENDED = "{name: mine, extends: a100-sxm4-80gb, memory: {capacity: 96 GB}, assumed: {memory: ours}}"


def test_a_device_that_extends_another_has_its_chip_and_software_unless_it_differs(tmp_path: Path) -> None:
    """With other memory it is run by the software of the base, and its band is no wider."""
    known = Catalog().system("dgx-a100-80gb")
    base = ps.predict(model="gpt3_xl", system=known, devices=8, batch=64)
    for file, text in (("mine.yaml", EXTENDED), ("more.yaml", "{name: more, extends: ./mine.yaml}")):
        (tmp_path / file).write_text(text, encoding="utf-8")
        device = Catalog().device(str(tmp_path / file))
        assert device.chip == "a100-sxm4-80gb"
        same = ps.predict(
            model="gpt3_xl", system=known.model_copy(update={"device": device}), devices=8, batch=64
        )
        assert (same.step_time_s, same.band_s) == (base.step_time_s, base.band_s)
    (tmp_path / "faster.yaml").write_text(EXTENDED.replace("memory: {", "compute_units: 120, memory: {", 1))
    assert Catalog().device(str(tmp_path / "faster.yaml")).chip == ""


def test_a_key_that_lacks_its_plural_is_told_it_and_no_other_part(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nextends: dgx-h100\nnode: {device: 4}\nassumed: {node: x}\n")
    with pytest.raises(CatalogError, match=r"unknown key `device` in node(.|\n)*did you mean `devices`"):
        Catalog().system(str(path))
