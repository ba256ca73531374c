"""The table of the README is that of the recorded errors; `PERFSIM_README=1` writes it anew."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfsim.prediction.bands import recorded_errors

README = Path(__file__).parents[2] / "README.md"
START = "<!-- accuracy:start -->\n"
END = "<!-- accuracy:end -->"
GROUPS = {
    "studies/validation/gpu.yaml": "A100 and H100, 2021 to 2023",
    "studies/validation/modern.yaml": "H100 to GB300, 2024 to 2026",
    "studies/validation/weight_streaming.yaml": "CS-2 (a software release left out)",
}


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def row(record: Mapping[str, Any]) -> str:
    cells = (
        GROUPS.get(record["family"], record["family"]),
        str(record["n"]),
        percent(record["held_out_median_ape"]),
        percent(record["held_out_p90_ape"]),
        percent(record["baseline_median_ape"]),
    )
    return f"| {' | '.join(cells)} |"


def test_the_accuracy_in_the_readme_is_the_recorded_one() -> None:
    head = [
        "| published runs | scored | median error | nine in ten within | median error of the baseline |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    table = "\n".join([*head, *(row(record) for record in recorded_errors())]) + "\n"
    text = README.read_text("utf-8")
    before, _, after = text.partition(START)
    shown, _, rest = after.partition(END)
    if os.environ.get("PERFSIM_README"):
        README.write_text(before + START + table + END + rest, "utf-8")
    else:
        assert shown == table, "run this test with PERFSIM_README=1"
