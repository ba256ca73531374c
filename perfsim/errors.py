"""Everything perfsim refuses, with the exit code a command line ends in.

Exit codes: 0 done, 1 the run failed, 2 bad input, 3 no feasible plan,
4 stopped by --max-events or --max-seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


class PerfsimError(Exception):
    """A refusal that is explained in full to the person who asked; never shown as a traceback."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in an input: where it stands, what it is, and the nearest mend.

    `file` is the path as the user gave it; `line` and `column` count from 1, 0 where unknown.
    """

    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    excerpt: str = ""
    help: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        text = f"{place}: {self.message}" if place else self.message
        if self.excerpt:
            text += f"\n    {self.excerpt.rstrip()}"
        if self.help:
            text += f"\n    help: {self.help}"
        return text


class InputError(PerfsimError):
    """What the user wrote cannot be used; lists every problem found, not only the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = [Problem(problems)]
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnitError(InputError):
    """A quantity without a unit, with an unknown one, or of the wrong dimension."""


class CatalogError(InputError):
    """A description in YAML that is malformed, incomplete or names something unknown."""


class LayoutError(InputError):
    """A parallel layout that contradicts itself, the model or the number of devices."""


class PlanError(PerfsimError):
    """No plan exists for a well-formed question; `reasons` lists why, most useful first."""

    exit_code = 3

    def __init__(self, reasons: Sequence[str] | str) -> None:
        self._reasons = (reasons,) if isinstance(reasons, str) else tuple(reasons)
        super().__init__("\n".join(self._reasons))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why there is none."""
        return self._reasons


class MemoryCapacityError(PlanError):
    """A layout that is legal but does not fit; `ratio` is what it needs over what there is.

    `advise` searches what would fit, when somebody reads the error: a planner meets thousands of them.
    """

    def __init__(self, ratio: float, reason: str, advise: Callable[[], str] | None = None) -> None:
        self.ratio, self._advise = ratio, advise
        super().__init__(reason)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What does not fit, and the nearest change that does."""
        return (str(self),)

    def __str__(self) -> str:
        if self._advise is not None:
            self._reasons = (f"{self._reasons[0]}; {self._advise()}",)
            self._advise = None
        return self._reasons[0]


class GraphError(PerfsimError):
    """A task graph that breaks its own rules; a defect of the strategy that wrote it."""


class DeadlockError(PerfsimError):
    """A simulation or a schedule that cannot proceed; the message says who waits for what."""


class LimitError(PerfsimError):
    """A limit that the user set on events or seconds; the message says how far the run had come."""

    exit_code = 4


class VerificationError(PerfsimError):
    """Sampled arithmetic that differs from the unpartitioned product; a defect of a strategy."""
