"""What is wrong with an executed schedule: which task, which tensor, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["hazard", "order", "value", "refused"]
"""hazard: two tasks touch a buffer and nothing orders them. order: a task found what another than the
intended task had written. value: numbers differ from serial training. refused: it cannot be executed."""


@dataclass(frozen=True)
class Fault:
    """One fault, with the task and the tensor that it concerns."""

    kind: FaultKind
    task: str
    tensor: str
    detail: str

    def __str__(self) -> str:
        return f"{self.task}: {self.tensor}: {self.detail}"


class FaultError(Exception):
    """Ends an execution that cannot go on; carries the fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault
