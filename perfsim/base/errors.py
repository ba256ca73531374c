"""Errors of perfsim, each with the exit code of the command line.

Exit codes: 0 done, 1 the run failed, 2 bad input, 3 no feasible plan,
4 stopped by --max-events or --max-seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from perfsim.base.text import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MOST_SHOWN = 20
"""Problems in the message of an error; `problems` has all of them."""
MOST_EXCERPT = 160
"""Characters of the line of a file that a problem shows."""
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a field",
    "greater_than_equal": "must be greater than or equal to {ge:.15g}",
    "greater_than": "must be greater than {gt:.15g}",
    "less_than_equal": "must be less than or equal to {le:.15g}",
    "less_than": "must be less than {lt:.15g}",
    "finite_number": "must be a finite number",
    "too_short": "needs at least {min_length} items",
    "too_long": "has at most {max_length} items",
    "json_invalid": "is not valid JSON: {error}",
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number is expected"
    ),
    **dict.fromkeys(("float_type", "float_parsing"), "a number is expected"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false is expected"),
    **dict.fromkeys(("model_type", "dict_type"), "a mapping (key: value) is expected"),
    "literal_error": "is not one of {expected}",
    "string_type": "a text is expected",
}
"""Complaints of pydantic in our words, by its type of error; the braces are values of its context."""


def refused_value(detail: Mapping[str, Any]) -> str:
    """What is wrong with a value, from one of the `errors()` of pydantic's ValidationError."""
    error = detail.get("ctx", {}).get("error")
    said = error.line if isinstance(error, InputError) else str(detail["msg"]).removeprefix("Value error, ")
    words = _WORDS.get(detail["type"])
    return words.format(**detail.get("ctx", {})) if words else said[:1].lower() + said[1:]


def refused_values(errors: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same for all errors, each behind the name of its field: `failure.restart is missing`."""
    said = []
    for detail in errors:
        name = ".".join(map(str, detail["loc"]))
        words = refused_value(detail)
        said.append(f"{name}{'' if words.startswith('is ') or not name else ':'} {words}".strip())
    return said


class PerfsimError(Exception):
    """Base of all errors meant for the user: shown as a message, never as a traceback."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """As workers send it: its message and fields, without building it anew from other arguments."""
        words = str(self)  # may complete the fields
        return Exception.__new__, (type(self), *(self.args or (words,))), vars(self)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong, problem by problem; one that says it all where there are no places to name."""
        return (Problem(str(self)),)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in an input: its place, what is wrong and how to fix it."""

    message: str
    file: str = ""
    """The path as the user gave it."""
    line: int = 0
    """From 1, as the column; 0 where unknown."""
    column: int = 0
    excerpt: str = ""
    help: str = ""

    def __str__(self) -> str:
        position = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        text = f"{position}: {self.message}" if position else self.message
        if self.excerpt:
            text += f"\n    {self.excerpt.rstrip()}"
        if self.help:
            text += f"\n    help: {self.help}"
        return text


def not_text(error: UnicodeDecodeError, file: str) -> Problem:
    """The problem of a file with bytes that are not UTF-8, at its line."""
    line = error.object[: error.start].count(b"\n") + 1
    return Problem(f"the byte 0x{error.object[error.start]:02x} is not UTF-8 text", file, line)


class InputError(PerfsimError, ValueError):
    """An invalid input; lists its problems, the first `MOST_SHOWN` of them in its message.

    A validator of pydantic raises it as any ValueError; the reader of a file shows it at its line.
    """

    exit_code = 2

    def __init__(self, problems: Sequence[Problem] | str, help_text: str = "") -> None:
        if isinstance(problems, str):
            problems = [Problem(problems, help=help_text)]
        self._problems = tuple(problems)
        lines = [str(problem) for problem in self._problems[:MOST_SHOWN]]
        if len(self._problems) > MOST_SHOWN:
            lines.append(f"and {len(self._problems) - MOST_SHOWN:,} more")
        super().__init__("\n".join(lines))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem with its place, what is wrong and how to fix it."""
        return self._problems

    @property
    def line(self) -> str:
        """What is wrong, without places and help, in one line."""
        more = len(self.problems) - MOST_SHOWN
        messages = [problem.message for problem in self.problems[:MOST_SHOWN]]
        return "; ".join([*messages, *([f"and {more:,} more"] if more > 0 else [])])


class UnknownNameError(InputError):
    """An unknown name; the help lists all names, the nearest one first."""

    def __init__(self, kind: str, name: str, names: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}", did_you_mean(name, names))


class CatalogError(InputError):
    """A YAML description that is malformed, incomplete or names something unknown."""


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
        return self._reasons

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The reasons as problems."""
        return tuple(Problem(reason) for reason in self.reasons)


class MemoryCapacityError(PlanError):
    """A legal layout that does not fit in memory; `ratio` is bytes needed over bytes available."""

    def __init__(self, ratio: float, reason: str, advise: Callable[[], str] | None = None) -> None:
        self.ratio = ratio
        self.reason = reason
        """What does not fit, without the nearest change that does."""
        # It searches for a layout that fits, when the message is read: of thousands few are shown.
        self._advise = advise
        super().__init__(reason)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What does not fit, and the nearest change that fits."""
        return (str(self),)

    def __str__(self) -> str:
        if self._advise is not None:
            self._reasons = (f"{self._reasons[0]}; {self._advise()}",)
            self._advise = None
        return self._reasons[0]


class GraphError(PerfsimError):
    """An invalid task graph; a defect of the strategy that wrote it."""


class DeadlockError(PerfsimError):
    """A simulation or a schedule that cannot proceed; the message names the waiting tasks."""


class LimitError(PerfsimError):
    """The user's limit on events or seconds was reached; the message says how far the run had come."""

    exit_code = 4


class VerificationError(PerfsimError):
    """A sampled GEMM differs from the unpartitioned product; a defect of a strategy."""


def attempt(answer: Callable[[], Answer]) -> Answer | PerfsimError:
    """An answer, or why an item has none: the one place that decides. Only a limit is raised and ends all."""
    try:
        return answer()
    except LimitError:
        raise
    except PerfsimError as error:
        return error


def within_floats(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """A function that raises PerfsimError where its arithmetic overflows or has no result."""

    @wraps(function)
    def checked(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        import numpy as np

        try:
            # NumPy would warn and continue with infinity, with NaN or with an arbitrary integer.
            with np.errstate(over="raise", divide="raise", invalid="raise"):
                return function(*args, **kwargs)
        except ArithmeticError as error:
            raise PerfsimError(
                f"the numbers of this question leave the range of floating point ({error}): "
                "at least one value of the inputs is far too large or too small"
            ) from error

    return checked


# Entry points of other packages, whose errors name the entry point.

Made = TypeVar("Made")


def plug_ins(*rooms: Literal["strategies", "machines"]) -> list[EntryPoint]:
    """The entry points of other packages in the groups of these rooms, such as `perfsim.strategies`."""
    from importlib.metadata import entry_points  # only where a question needs them

    return [point for room in rooms for point in entry_points(group=f"perfsim.{room}")]


@cache
def check_own(room: Literal["strategies", "machines"], name: str) -> None:
    """Raise InputError where a plug-in has the name of something built in, which would silently win."""
    for point in plug_ins(room):
        if point.name == name:
            built_in = f"perfsim.{room} has {name!r} built in"
            raise InputError(f"{described(point)} and {built_in}", "give the entry point another name")


def made_by(point: EntryPoint, use: Callable[[Any], Made]) -> Made:
    """What `use` makes of the object that an entry point names; PerfsimError for whatever it raises."""
    try:
        return use(point.load())
    except (Exception, SystemExit) as error:
        raise PerfsimError(f"{described(point)} cannot be used: {_in_one_line(error)}") from error


def described(point: EntryPoint) -> str:
    """`the plug-in 'mine' of perfsim.strategies (mine.module:Mine)`."""
    return f"the plug-in {point.name!r} of {point.group} ({point.value})"


def blamed(error: BaseException) -> str:
    """What a plug-in raised, in one line, where its code is in the traceback; else empty."""
    import traceback

    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for point in plug_ins("strategies", "machines"):
        package = point.module.partition(".")[0]
        if package != "perfsim" and any(name.partition(".")[0] == package for name in modules):
            return f"{described(point)} failed: {_in_one_line(error)}"
    return ""


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
