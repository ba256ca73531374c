"""Faults of an executed schedule: the task, the tensor and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal["hazard", "order", "value", "memory", "refused"]
"""hazard: two tasks access a buffer without a dependency. order: a task read what another than the intended
task had written. value: numbers differ from serial training. memory: a rank holds more or fewer micro-batches
in flight than its schedule promises. refused: it cannot be executed."""


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
"""Errors of Python that an invalid graph causes; they become faults, never a traceback."""


class FaultError(Exception):
    """Ends an execution that cannot continue; carries the fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def failure(kind: FaultKind, task: str, tensor: str, detail: str, error: Exception) -> FaultError:
    """A fault from a Python error, which does not tell the task and the tensor itself."""
    reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError | IndexError) else str(error)
    return FaultError(Fault(kind, task, tensor, f"{detail}: {reason}"))


def origin(error: Exception) -> str:
    """The function that raised an error, in words."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "somewhere"
    code = trace.tb_frame
    return f"in {code.f_globals.get('__name__', '')}.{code.f_code.co_qualname}, line {trace.tb_lineno}"
