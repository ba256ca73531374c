"""Questions on one machine share its prices, and are answered as with their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfsim.catalog import Catalog, data_root
from perfsim.prediction.question import KEPT, MOST_LENT, PriceTables, Question
from perfsim.studies import runner
from perfsim.studies.axes import load_sweep
from perfsim.studies.runner import answer_text

CATALOG = Catalog([data_root()])
RECIPE = CATALOG.recipe("gpt3_pretraining")
GRID = """\
  candidates:
    - {strategy: 3d, system: dgx-a100-80gb, devices: [8, 16], layout: "tp=2,mbs=1"}
    - {strategy: weight-streaming, system: cs-2, devices: [1, 2]}
  recipe.global_batch_size: [16, 24, 32]
  model.num_layers: [2, 4]
"""


def question(devices: int = 8, **recipe: object) -> Question:
    return Question(
        model=CATALOG.model("gpt3_xl"),
        recipe=RECIPE.with_(**recipe),
        system=CATALOG.system("dgx-a100-80gb"),
        devices=devices,
        strategy="3d",
    )


def test_another_batch_has_the_same_prices_and_another_precision_or_number_of_devices_has_not() -> None:
    tables = PriceTables()
    questions = question(), question(global_batch_size=64), question(precision="fp32"), question(16)
    for lent in questions:
        tables.lend(lent)
    first, batch, fp32, more = questions
    assert (batch.costs, batch.topology) == (first.costs, first.topology)
    assert first.costs not in (fp32.costs, more.costs)


def test_few_machines_are_kept_and_none_for_ever() -> None:
    tables = PriceTables()
    first = question(8)
    tables.lend(first)
    for number in range(KEPT):
        tables.lend(question(16 + 8 * number))
    again = question(8)
    tables.lend(again)
    assert again.costs is not first.costs
    lent = []
    for _ in range(MOST_LENT):
        lent.append(question(8))
        tables.lend(lent[-1])
    assert lent[0].costs is again.costs
    assert lent[-1].costs is not again.costs


def test_points_have_the_same_digits_in_any_order_with_shared_prices(
    write_sweep: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = load_sweep(str(write_sweep(GRID))).points

    def texts(backwards: bool, shared: bool) -> list[str]:
        tables = PriceTables()
        answers = []
        for point in points[:: -1 if backwards else 1]:
            monkeypatch.setattr(runner, "TABLES", tables if shared else PriceTables())
            answers.append(answer_text(point).text)
        return answers[:: -1 if backwards else 1]

    alone = texts(backwards=False, shared=False)
    assert texts(backwards=False, shared=True) == alone
    assert texts(backwards=True, shared=True) == alone
