"""Networks and prices that consecutive questions share, so that they are not built for each."""

from __future__ import annotations

from dataclasses import dataclass

from perfsim.costs.price import Costs
from perfsim.hardware import SystemSpec
from perfsim.prediction.question import Question
from perfsim.topology import Topology
from perfsim.workload import TrainingRecipe

KEPT = 4
"""Machines whose prices are kept."""
MOST_LENT = 64
"""Questions after which prices are built anew, since each question adds shapes to them."""
_UNPRICED = (
    "global_batch_size",
    "batch_size_per_device",
    "tokens",
    "tokens_per_parameter",
    "target_loss",
)
"""Fields of a recipe that price no work."""
_PROSE = {"name": "", "description": "", "sources": {}, "assumed": {}}


def priced_part(recipe: TrainingRecipe) -> TrainingRecipe:
    """The recipe without its batch and its target, on which no price of work depends."""
    return recipe.model_copy(update={**_PROSE, **dict.fromkeys(_UNPRICED)})


@dataclass
class _Machine:
    system: SystemSpec
    devices: int
    recipe: TrainingRecipe
    topology: Topology
    costs: Costs
    lent: int = 0

    def suits(self, question: Question, recipe: TrainingRecipe) -> bool:
        """Whether its prices are those of a question."""
        return self.devices == question.devices and self.recipe == recipe and self.system == question.system


class PriceTables:
    """The networks and prices of the last few machines."""

    def __init__(self) -> None:
        self._machines: list[_Machine] = []

    def lend(self, question: Question) -> None:
        """Give a question the network and prices of an earlier one on the same machine, or keep its own."""
        recipe = priced_part(question.recipe)
        machine = next((known for known in self._machines if known.suits(question, recipe)), None)
        if machine is None:
            machine = _Machine(question.system, question.devices, recipe, question.topology, question.costs)
            self._machines = [*self._machines[1 - KEPT :], machine]
        question.__dict__.update(topology=machine.topology, costs=machine.costs)
        machine.lent += 1
        if machine.lent == MOST_LENT:
            self._machines = [known for known in self._machines if known is not machine]
