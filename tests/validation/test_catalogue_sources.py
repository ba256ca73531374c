"""Every value of the catalogue rests on a registered source, or on a stated reason."""

from collections.abc import Callable
from typing import Any

import pytest

from perfsim.catalog import KINDS, Catalog, LocatedMapping, data_root
from perfsim.catalog.reader import values
from perfsim.specs.calibration import Calibration

CATALOG = Catalog([data_root()])
STRUCTURE = ("kind", "calibration", "chip", "framework", "launcher", "tool", "system_kind")
"""Keys for what a description is and which fit it uses: not facts, so they need no source."""
DESCRIBED = [kind for kind in KINDS if kind not in ("study", "calibration", "framework")]
ENTRIES = [(kind, name) for kind in DESCRIBED for name in CATALOG.names(kind)]
FITTED = ("calibration", "framework")
CALIBRATIONS = [(kind, name) for kind in FITTED for name in CATALOG.names(kind)]
PLAIN_VERBS = ("gemm", "collective", "framework", "wafer")


@pytest.mark.parametrize("entry", ENTRIES, ids="/".join)
def test_every_value_has_a_registered_source_or_a_reason_and_each_has_a_value(entry: tuple[str, str]) -> None:
    kind, name = entry
    mapping = LocatedMapping.read(CATALOG.find(kind, name), kind, CATALOG)
    leaves = [leaf for leaf, _ in values(mapping.node).leaves()]
    for key in (*mapping.data.get("sources", {}), *mapping.data.get("assumed", {})):
        assert any(leaf == key or leaf.startswith(f"{key}.") for leaf in leaves), f"{key} has no value"
    for row in CATALOG.describe(name, kind):
        if row.path in STRUCTURE:
            continue
        assert row.source_or_assumption, f"{kind} {name}: {row.path} has neither a source nor a reason"
        if row.source_id:
            assert row.source_id in CATALOG.sources()
        else:
            assert len(row.source_or_assumption.split()) > 4, f"{kind} {name}: {row.path} gives no reason"


@pytest.mark.parametrize("entry", CALIBRATIONS, ids="/".join)
def test_every_constant_has_a_source_or_a_reason_or_a_fit_that_determines_it(
    entry: tuple[str, str],
    unaccounted: Callable[[Calibration], list[str]],
    constants_of: Callable[[Calibration], dict[str, Any]],
) -> None:
    calibration: Calibration = CATALOG.load(*entry)
    assert constants_of(calibration)
    assert unaccounted(calibration) == []
    paths = [*constants_of(calibration), *calibration.model_fields_set]
    for key in (*calibration.sources, *calibration.assumed):
        assert any(path == key or path.startswith(f"{key}.") for path in paths), key
    for record in calibration.fit.values():
        assert all(error >= 0 for error in record.standard_errors.values())
        assert record.command.startswith(tuple(f"perfsim calibrate {verb} " for verb in PLAIN_VERBS))
    for source_id in [*calibration.sources.values(), *(fit.table for fit in calibration.fit.values())]:
        assert source_id in CATALOG.sources()


@pytest.mark.parametrize(("link", "rate"), [("nvlink3", 300e9), ("nvlink4", 450e9)])
def test_a_bandwidth_at_the_line_rate_is_said_to_be_the_links(
    link: str, rate: float, constants_of: Callable[[Calibration], dict[str, Any]]
) -> None:
    calibration = CATALOG.load("calibration", link)
    fitted = {
        path: n for path, n in constants_of(calibration).items() if path.startswith(tuple(calibration.fit))
    }
    at_rate = [path for path, value in fitted.items() if value == rate]
    assert at_rate
    assert all("line rate" in calibration.assumed[path] for path in at_rate)


def test_every_registered_source_is_cited() -> None:
    rows = [row for kind, name in ENTRIES for row in CATALOG.describe(name, kind)]
    calibrations = [CATALOG.load(kind, name) for kind, name in CALIBRATIONS]
    names = CATALOG.names("study")
    studies = [LocatedMapping.read(CATALOG.find("study", name), "study", CATALOG).data for name in names]
    cited = {row.source_id for row in rows}
    for fitted in calibrations:
        cited |= {*fitted.sources.values(), *(fit.table for fit in fitted.fit.values())}
    for study in studies:
        cited |= {str(source_id) for source_id in study.get("sources", {}).values()}
    assumed = [reason for fitted in calibrations for reason in fitted.assumed.values()]
    reasons = " ".join([*assumed, *(row.source_or_assumption for row in rows if row.assumed)])
    sections = [path for path in data_root().glob("*/sources.yaml") if path.parent.name != "studies"]
    registered = {str(key) for path in sections for key in LocatedMapping.read(path, "study", CATALOG).data}
    assert not [source_id for source_id in registered - cited if source_id not in reasons]


def test_systems_agree_with_figures_published_elsewhere() -> None:
    dgx = CATALOG.system("dgx-a100-80gb")
    cs2 = CATALOG.system("cs-2")
    assert dgx.kind == "gpu-cluster"
    assert dgx.node.inter_node_bytes_per_s == 1600e9 / 8
    assert cs2.kind == "wafer-cluster"
    assert cs2.io_bytes_per_s == 1.2e12 / 8
    assert cs2.device.peak["fp16"] == pytest.approx(850_000 * 4 * 2 * 1.1e9)
