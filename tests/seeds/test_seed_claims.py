"""Claims of four documents and of ten publications beyond: what perfsim predicts, and one rule that judges.

The claims are rows of `claims.yaml`. A figure of a row is read from the JSON of its command, with its range;
`judged` compares the range with what is claimed. With PERFSIM_SEEDS=FILE (`make seeds`) FILE gets the page.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner
from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from perfsim.catalog.catalog import data_root
from perfsim.cli import main

PAGE = "reports/seeds.md"
DOCUMENTS = {
    "000": "N. Vassilieva, Cerebras blog, 2022-06-22 (one CS-2, 1.3 to 6.7 billion parameters)",
    "001": "D. Lam, Cerebras blog, 2022-09-14 (linear scaling to 192 CS-2)",
    "002": "N. Dey et al., Cerebras blog, 2023-03-28 (Cerebras-GPT)",
    "003": "J. Hestness et al., Cerebras blog, 2022-06-22 (largest models on one device)",
    "beyond": "Published elsewhere, of both camps",
}
WIDE = 2.0
"""A range whose ends are further apart than this factor agrees with nearly any figure and supports none."""
UNSHARED = {"shared": 1.1, "shared on wafers": 1.2, "cancel": 1.0}
"""Factor of the error of one step on a machine that other steps on it do not share: `unshared_error` of the
answers to studies is 0.07 to 0.10 on GPUs and 0.19 on wafers."""


class Type(StrEnum):
    """Where the figure of a row comes from."""

    PREDICTED = "predicted"
    FITTED = "fitted"
    COPIED = "copied"
    BY_CONSTRUCTION = "by construction"
    OUT_OF_SCOPE = "out of scope"


class Verdict(StrEnum):
    """What a range says of a claim; a row takes the last of those of its figures."""

    SUPPORTED = "supported"
    CANNOT_TELL = "cannot tell"
    NOT_SUPPORTED = "not supported"
    REFUTED = "refuted"


class Range(NamedTuple):
    """A predicted figure with its 90 % range; both ends are the figure where it is counted or exact."""

    typical: float
    low: float
    high: float

    @classmethod
    def within(cls, typical: float, factor: float) -> Range:
        return cls(typical, typical / factor, typical * factor)

    def over(self, other: Range) -> Range:
        """The ratio of two figures whose errors are independent: their factors add as squares."""

        def factor(one: float, other: float) -> float:
            return math.exp(math.hypot(math.log(one), math.log(other)))

        ratio = self.typical / other.typical
        fall = factor(self.typical / self.low, other.high / other.typical)
        rise = factor(self.high / self.typical, other.typical / other.low)
        return Range(ratio, ratio / fall, ratio * rise)

    def times(self, factor: float) -> Range:
        return Range(self.typical * factor, self.low * factor, self.high * factor)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Claimed(Strict):
    """What is claimed of a figure: a value with its tolerance as a share, or a bound."""

    value: float | None = None
    within: float = 0.02
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def low(self) -> float:
        return self.at_least if self.value is None else self.value * (1 - self.within)

    @property
    def high(self) -> float:
        return self.at_most if self.value is None else self.value * (1 + self.within)

    def __str__(self) -> str:
        if self.value is None and self.low == -self.high:
            return "not claimed"
        if self.value is not None:
            return f"claimed {number(self.value)}"
        ends = [f"at least {number(self.low)}"] if self.low > -math.inf else []
        return "claimed " + " and ".join(
            ends + ([f"at most {number(self.high)}"] if self.high < math.inf else [])
        )


class Figure(Strict):
    """A number in the JSON of a command, or the ratio of two, next to what is claimed of it."""

    name: str
    read: str
    """Path in the document: `points[settings.variant=13B].mfu`; `answered` is 1 where the command answers."""
    command: str = ""
    """The row's, unless given."""
    over: str = ""
    """Command whose figure at the same path divides this one."""
    over_read: str = ""
    """Path of the divisor, where it is another one."""
    errors: str = "independent"
    """Of a ratio: `independent`, `shared` (steps of one machine) or `cancel` (one setting changed)."""
    spread_of: str = ""
    """Path whose relative range the figure takes."""
    ends: tuple[str, str] | None = None
    """Options that give the low and the high end of the range."""
    times: float = 1.0
    """To the unit of the name."""
    claimed: Claimed


class Row(Strict):
    """One claim."""

    id: int
    document: str
    place: str
    says: str
    type: Type
    why: str
    command: str = ""
    figures: tuple[Figure, ...] = ()
    stands_in: str = ""
    """File in which a fitted or copied figure stands."""
    text: str = ""
    """The words of that file which show it."""
    source: str = ""
    """Where a claim beyond the documents was read."""
    quick: bool = False

    @model_validator(mode="after")
    def consistent(self) -> Row:
        answered = self.type is not Type.OUT_OF_SCOPE
        if self.figures and not answered:
            raise ValueError(f"row {self.id} is out of scope and has figures")
        if answered and not (self.figures and self.command):
            raise ValueError(f"row {self.id} has no figure or no command")
        if (self.type in (Type.FITTED, Type.COPIED)) != bool(self.stands_in and self.text):
            raise ValueError(f"row {self.id}: where a fitted or copied figure stands, and only there")
        if (self.document == "beyond") != bool(self.source):
            raise ValueError(f"row {self.id}: sources belong to claims beyond the documents")
        return self


TABLE = Path(__file__).with_name("claims.yaml")
ROWS = TypeAdapter(list[Row]).validate_python(yaml.safe_load(TABLE.read_text(encoding="utf-8")))
MARKED = [pytest.param(row, id=str(row.id), marks=[] if row.quick else [pytest.mark.slow]) for row in ROWS]


def judged(predicted: Range | None, claimed: Claimed) -> Verdict:
    """The verdict of a range on a claim.

    Nothing that meets the claim refutes it. A range inside the claim supports it, and so does a range of less
    than `WIDE` that has the claimed value. Otherwise they meet in part: the typical figure tells nothing sure
    where the claim holds for it, and does not support the claim where it does not.
    """
    if predicted is None:
        return Verdict.CANNOT_TELL
    if predicted.high < claimed.low or predicted.low > claimed.high:
        return Verdict.REFUTED
    if claimed.low <= predicted.low and predicted.high <= claimed.high:
        return Verdict.SUPPORTED
    if claimed.value is not None and predicted.low <= claimed.value <= predicted.high:
        return Verdict.SUPPORTED if predicted.high < WIDE * predicted.low else Verdict.CANNOT_TELL
    return Verdict.CANNOT_TELL if claimed.low <= predicted.typical <= claimed.high else Verdict.NOT_SUPPORTED


BANDS = {
    "ratio": ("ratio", "range"),
    "step_time_s": ("step_time_s", "band_s"),
    "time_to_accuracy_s": ("time_to_accuracy_s", "time_to_accuracy_band_s"),
    "production_time_s": ("production_time_s", "production_band_s"),
}
"""Of a figure in a document: the fields of its typical value and of its 90 % band."""
RATES = {"tokens_per_s", "mfu", "hfu"}
"""Fields that fall as the step's time rises."""
STEP = re.compile(r"\[([^\]]+)\]|([^.\[]+)")
"""A step of a path: what is between brackets, or a name."""


@cache
def document(command: str) -> Any:
    """The JSON that a command prints, None where it refuses; reports go to a folder that is removed."""
    words = shlex.split(command.removeprefix("perfsim "))
    with TemporaryDirectory() as folder:
        reported = ["--jobs", "1", "--out", f"{folder}/out"] if words[0] in ("study", "sweep") else []
        result = CliRunner().invoke(main, [*words, "--json", *reported])
    if result.exit_code:
        assert "does not fit" in result.output or "error:" in result.output, f"{command}: {result.output}"
        return None
    return json.loads(result.stdout)


def at(node: Any, path: str) -> Any:
    """The part of a document at a path; None where it has none."""
    for step in STEP.finditer(path):
        key = step[1] or step[2]
        if isinstance(node, list) and "=" in key:
            wanted = [condition.partition("=") for condition in key.split("&")]
            node = next(
                (one for one in node if all(str(at(one, name)) == value for name, _, value in wanted)), None
            )
        elif isinstance(node, list):
            node = node[int(key)] if int(key) < len(node) else None
        else:
            node = None if node is None else node.get(key)
    return node


def figure_at(answer: Any, path: str) -> Range | None:
    """The figure at a path with its range: its three values, or those of the band next to it."""
    if path == "answered":
        return Range.within(float(answer is not None), 1.0)
    if "[*]" in path:
        return total(answer, path)
    value = at(answer, path)
    if value is None:
        return None
    if isinstance(value, dict):
        return Range(value["typical"], value["low"], value["high"])
    typical = float(str(value).split()[0]) if isinstance(value, str) else float(value)
    record = at(answer, path.rpartition(".")[0])
    name = path.rpartition(".")[2]
    time, band = BANDS.get("step_time_s" if name in RATES else name, ("", ""))
    if not isinstance(record, dict) or band not in record:
        return Range.within(typical, 1.0)
    low, high = (end / record[time] for end in record[band])
    return (
        Range(typical, typical / high, typical / low)
        if name in RATES
        else Range(typical, typical * low, typical * high)
    )


def total(answer: Any, path: str) -> Range:
    """The sum of a figure over the entries of a list; one machine has their errors, so ends add as well."""
    entries, _, rest = path.partition("[*].")
    parts = [part for entry in at(answer, entries) if (part := figure_at(entry, rest))]
    return Range(*(math.fsum(ends) for ends in zip(*parts, strict=True)))


def predicted(figure: Figure, command: str, options: str = "") -> Range | None:
    """What perfsim says of a figure; options are added to each of its commands."""
    command = f"{figure.command or command} {options}".strip()
    got = figure_at(document(command), figure.read)
    if got is None:
        return None
    if figure.spread_of:
        spread = figure_at(document(command), figure.spread_of)
        got = Range(
            got.typical, got.typical * spread.low / spread.typical, got.typical * spread.high / spread.typical
        )
    if figure.over or figure.over_read:
        divisor = figure_at(
            document(f"{figure.over or command} {options}".strip()), figure.over_read or figure.read
        )
        if divisor is None:
            return None
        got = ratio_of(got, divisor, figure.errors)
    if figure.ends:
        low, high = (predicted(figure.model_copy(update={"ends": None}), command, end) for end in figure.ends)
        return Range(got.times(figure.times).typical, low.typical, high.typical)
    return got.times(figure.times)


def ratio_of(dividend: Range, divisor: Range, errors: str) -> Range:
    if errors == "independent":
        return dividend.over(divisor)
    factor = UNSHARED[errors]
    return Range.within(dividend.typical, factor).over(Range.within(divisor.typical, factor))


def verdict_of(row: Row, options: str = "") -> Verdict | None:
    """The furthest from support of the verdicts of a row's figures; None out of scope."""
    order = list(Verdict)
    verdicts = [judged(predicted(figure, row.command, options), figure.claimed) for figure in row.figures]
    return max(verdicts, key=order.index, default=None)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def told(figure: Figure, command: str) -> str:
    """A figure in words: its range where it has one, and the claim."""
    got = predicted(figure, command)
    if figure.read == "answered":
        return f"{figure.name}: {'yes' if got and got.typical else 'no'}"
    if got is None:
        return f"{figure.name}: not known"
    ends = f" ({number(got.low)} to {number(got.high)})" if got.high > got.low else ""
    return f"{figure.name}: {number(got.typical)}{ends}, {figure.claimed}"


ABOUT = """\
Written by `make seeds` from `tests/seeds/claims.yaml`: 75 claims of four documents, then ten published ones
of both camps. One rule computes each verdict from the predicted range and the claim: *refuted* where they
do not meet, *supported* where the range lies in the claim or holds the claimed value within a factor of
two, *not supported* where they meet but the typical figure misses, else *cannot tell*. A row has the worst
verdict of its figures. Types: *predicted* (constants from elsewhere), *fitted* (the figure was used in a
fit), *copied* (a value of a data sheet), *by construction* (cannot be otherwise), *out of scope*. A
measured figure that is refuted speaks against perfsim.
"""
COLUMNS = ("where", "it says", "command", "perfsim says", "verdict", "type", "why this type")


def page() -> str:
    """The page: counts by type and verdict, then a table for each document."""
    verdicts = {row.id: verdict_of(row) for row in ROWS}
    text = f"# What is claimed, and what perfsim says of it\n\n{ABOUT}\n"
    counts = Counter((row.type, verdicts[row.id]) for row in ROWS)
    text += f"| type | {' | '.join(Verdict)} | none | all |\n|---|{'--:|' * 6}\n"
    for kind in Type:
        cells = [counts[kind, verdict] for verdict in (*Verdict, None)]
        text += f"| {kind} | {' | '.join(map(str, cells))} | {sum(cells)} |\n"
    for key, title in DOCUMENTS.items():
        text += f"\n## {title}\n\n| # | {' | '.join(COLUMNS)} |\n|--:|{'---|' * len(COLUMNS)}\n"
        text += "".join(f"{line(row, verdicts[row.id])}\n" for row in ROWS if row.document == key)
    return text


def line(row: Row, verdict: Verdict | None) -> str:
    """A row of the page."""
    commands = dict.fromkeys([row.command, *(figure.command or row.command for figure in row.figures)])
    shown = "<br>".join(f"`{command}`" for command in commands if command)
    says = "<br>".join(told(figure, row.command) for figure in row.figures)
    where = f"{row.place}; {row.source}" if row.source else row.place
    cells = [row.id, where, row.says, shown, says, verdict or "none", row.type, row.why]
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def recorded() -> dict[int, tuple[str, str]]:
    """Verdict and type of each row of the page."""
    lines = (data_root() / PAGE).read_text(encoding="utf-8").splitlines()
    rows = [re.split(r" (?<!\\)\| ", line) for line in lines if re.match(r"\| \d+ \| ", line)]
    return {int(cells[0].removeprefix("| ")): (cells[5], cells[6]) for cells in rows}


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data_root())


@pytest.mark.parametrize("row", MARKED)
def test_the_page_has_the_verdict_that_the_rule_computes(row: Row) -> None:
    if os.environ.get("PERFSIM_SEEDS"):
        pytest.skip("the page is written anew")
    assert recorded()[row.id] == (verdict_of(row) or "none", row.type)


def test_every_claim_of_the_documents_has_one_row() -> None:
    assert [row.id for row in ROWS] == list(range(1, 86))
    of_documents = Counter(row.document for row in ROWS)
    assert of_documents == {"000": 20, "001": 12, "002": 17, "003": 26, "beyond": 10}
    assert sorted(recorded()) == [row.id for row in ROWS]


@pytest.mark.parametrize("row", [row for row in ROWS if row.stands_in], ids=lambda row: str(row.id))
def test_a_fitted_or_copied_figure_stands_where_the_row_says(row: Row) -> None:
    assert row.text in (data_root() / row.stands_in).read_text(encoding="utf-8")


def values_used() -> Iterator[float]:
    """Numbers of three digits and more of hardware files and measured steps, without shares in %."""
    for folder in ("hardware", "studies/validation"):
        for path in (data_root() / folder).rglob("*.yaml"):
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = lines if folder == "hardware" else [line for line in lines if "measured:" in line]
            words = (word for line in kept for word in re.findall(r"\d+\.?\d*(?![\d.]*%)", line))
            yield from (float(word) for word in words if len(word) > 2)


def test_no_predicted_value_stands_in_a_hardware_file_or_among_measured_steps() -> None:
    used = set(values_used())
    for row in ROWS:
        if row.type is Type.PREDICTED:
            claimed = [figure.claimed.value for figure in row.figures if figure.claimed.value]
            assert not [
                value for value in claimed if len(f"{value:g}".replace(".", "")) > 2 and value in used
            ], row.id


TURNED = [
    (27, '--set "system.node.nic.bandwidth=100 TB/s"', Verdict.REFUTED),
    (50, '--set "system.device.memory.capacity=4 GB"', Verdict.REFUTED),
    (52, '--set "system.node.scale_up.bandwidth=500 MB/s"', Verdict.REFUTED),
    (69, '--set "system.device.memory.capacity=400 GB"', Verdict.SUPPORTED),
]
"""Rows with another machine: its prediction refutes supported claims, and supports a refuted one."""


@pytest.mark.parametrize(("claim", "options", "expected"), TURNED)
def test_another_machine_turns_the_verdict(claim: int, options: str, expected: Verdict) -> None:
    row = ROWS[claim - 1]
    assert verdict_of(row) is not expected
    assert verdict_of(row, options) is expected


def test_a_range_of_more_than_a_factor_of_two_supports_no_value() -> None:
    assert judged(Range(10, 6, 13), Claimed(value=12)) is Verdict.CANNOT_TELL
    assert judged(Range(10, 8, 13), Claimed(value=12)) is Verdict.SUPPORTED
    assert judged(None, Claimed(value=12)) is Verdict.CANNOT_TELL
    assert judged(Range(10, 9, 11.5), Claimed(value=12, within=0.1)) is Verdict.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [(6, Verdict.SUPPORTED), (8, Verdict.CANNOT_TELL), (12, Verdict.NOT_SUPPORTED), (14, Verdict.REFUTED)],
)
def test_a_bound_is_judged_by_the_ends_of_the_range_then_its_middle(bound: float, verdict: Verdict) -> None:
    assert judged(Range(10, 7, 13), Claimed(at_least=bound)) is verdict
    assert judged(Range(-10, -13, -7), Claimed(at_most=-bound)) is verdict


@pytest.mark.slow
def test_the_page_is_written_where_it_is_named() -> None:
    named = os.environ.get("PERFSIM_SEEDS")
    if not named:
        pytest.skip("PERFSIM_SEEDS names no page")
    Path(named).write_text(page(), encoding="utf-8")
