"""What several verbs share: options, and checks of what they are given."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from perfsim.errors import InputError, Problem

Verb = TypeVar("Verb", bound=Callable[..., Any])

SECONDS_ON_A_TERMINAL = 1.0
"""Between two lines of progress; a run that is over before says nothing."""
SECONDS_IN_A_LOG = 30.0


def limits(verb: Verb) -> Verb:
    """`--max-events` and `--max-seconds`, and progress of what takes long."""

    @click.option(
        "--max-events",
        type=click.IntRange(min=1),
        default=None,
        help="Tasks to simulate at most, all processes together; a step that has more is not begun.",
    )
    @click.option(
        "--max-seconds",
        type=click.FloatRange(min=0.0),
        default=None,
        help="Seconds to compute at most, planning included.",
    )
    @functools.wraps(verb)
    def limited_verb(*args: Any, max_events: int | None, max_seconds: float | None, **kwargs: Any) -> Any:
        from perfsim.engine.limits import Limits, limited

        with limited(Limits(max_events, max_seconds, Progress())):
            return verb(*args, **kwargs)

    return limited_verb  # type: ignore[return-value]  # the same verb with two options more


class Progress:
    """Says on standard error how far a long simulation is; now and then, not each time that it is told."""

    def __init__(self) -> None:
        self.every_s = SECONDS_ON_A_TERMINAL if sys.stderr.isatty() else SECONDS_IN_A_LOG
        self.last_s = time.monotonic()

    def __call__(self, ended: int, total: int) -> None:
        now_s = time.monotonic()
        if now_s - self.last_s >= self.every_s:
            self.last_s = now_s
            click.echo(f"{ended:,} of {total:,} tasks simulated", err=True)


def must_exist(path: Path) -> None:
    """Raise InputError unless this is a file."""
    if path.is_dir():
        raise InputError([Problem("is a directory; a file is expected", file=str(path))])
    if not path.is_file():
        raise InputError([Problem("there is no such file", file=str(path))])
