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


BROKEN = (KeyError, IndexError, ValueError, TypeError, AttributeError, ArithmeticError)
"""What Python raises where a graph asks for what is not there; ends as a fault, never as a traceback."""


class FaultError(Exception):
    """Ends an execution that cannot go on; carries the fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def failure(kind: FaultKind, task: str, tensor: str, what: str, error: Exception) -> FaultError:
    """A fault from an error of Python's own, which says what is missing but not where."""
    said = f"{type(error).__name__}: {error}" if isinstance(error, KeyError | IndexError) else str(error)
    return FaultError(Fault(kind, task, tensor, f"{what}: {said}"))


def origin(error: Exception) -> str:
    """The function that an error comes from, in words."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "somewhere"
    code = trace.tb_frame
    return f"in {code.f_globals.get('__name__', '')}.{code.f_code.co_qualname}, line {trace.tb_lineno}"
