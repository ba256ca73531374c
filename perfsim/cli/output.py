"""One bar on a terminal for whatever takes longer than two seconds; lines now and then in a log."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfsim.base.errors import PerfsimError

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_BEFORE_A_BAR = 2.0
SECONDS_BETWEEN_DRAWINGS = 0.1
SECONDS_IN_A_LOG = 30.0
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else."
)
_COUNTED = re.compile(r"([\d,]+) of ([\d,]+) ([^:,]*)")
"""`12 of 26 points, about 10 s left`; `0 of 4 candidates: 3d on 8 A100-80GB`."""
_ASCII = str.maketrans(
    {
        "\u00d7": "x", "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u00b5": "u", "\u03bc": "u",
        "\u2264": "<=", "\u2265": ">=", "\u2248": "~", "\u2026": "...", "\u2018": "'", "\u2019": "'",
        "\u201c": '"', "\u201d": '"', "\u00a0": " ", "\u00b1": "+/-", "\u00b7": "*", "\u2192": "->",
    }
)  # fmt: skip


class _Meter:
    """Shows how far a verb is, with rate and remaining time.

    It draws only when it is told something, so that no thread runs while processes are forked; a
    process that inherits it shows nothing.
    """

    def __init__(self) -> None:
        self.quiet = False
        self.started_s = self.shown_s = time.monotonic()
        self.owner = os.getpid()
        self.counts_items = False
        self.bar: Progress | None = None

    def tell(self, message: str) -> None:
        """Say what is being computed; a message that begins with `3 of 26 points` moves the bar."""
        counted = _COUNTED.match(message)
        if counted is None:
            self._draw(message, None, None)
            return
        done, total = (int(number.replace(",", "")) for number in counted.groups()[:2])
        self.counts_items = True
        self._draw(message.partition(": ")[2] or counted[3], done, total)

    def tasks(self, ended: int, total: int) -> None:
        """So many tasks of the present simulation have ended; a verb of many items shows those instead."""
        if not sys.stderr.isatty():
            now_s = time.monotonic()
            if not self.quiet and now_s - self.shown_s >= SECONDS_IN_A_LOG and os.getpid() == self.owner:
                self.shown_s = now_s
                click.echo(f"{ended:,} of {total:,} tasks simulated", err=True)
        elif not self.counts_items:
            self._draw("tasks of a step", ended, total)

    def stop(self) -> None:
        if self.bar is not None and os.getpid() == self.owner:
            self.bar.stop()
            self.bar = None

    def _draw(self, words: str, done: int | None, total: int | None) -> None:
        now_s = time.monotonic()
        early = now_s - self.started_s < SECONDS_BEFORE_A_BAR
        if self.quiet or early or not sys.stderr.isatty() or os.getpid() != self.owner:
            return
        if self.bar is not None and now_s - self.shown_s < SECONDS_BETWEEN_DRAWINGS and done != total:
            return
        self.shown_s = now_s
        if self.bar is None:
            self.bar = _new_bar()
            self.bar.start()
        if not self.bar.tasks or (self.bar.tasks[0].total is None) != (total is None):
            for task in self.bar.tasks:
                self.bar.remove_task(task.id)  # its rate is of other things
            self.bar.add_task(words, total=total)
        self.bar.update(self.bar.tasks[0].id, description=words, completed=done, total=total)
        self.bar.refresh()


def _new_bar() -> Progress:
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Items a second, once it is known."""

        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            digits = "{:,.0f}/s" if speed and speed >= 100 else "{:.3g}/s"
            return Text(digits.format(speed) if speed else "")

    columns = (
        "{task.description}",
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True)


_RUNNING: list[_Meter] = []


@contextmanager
def metered() -> Iterator[_Meter]:
    """The meter of a verb, while it runs."""
    meter = _Meter()
    _RUNNING.append(meter)
    try:
        yield meter
    finally:
        _RUNNING.pop()
        meter.stop()


# How every verb prints: JSON for programs, lines for people, progress on standard error.


def write_error(text: str) -> None:
    """Print on standard error, with control characters written out: names may hold any."""
    shown = "".join(
        char if char == "\n" or unicodedata.category(char)[0] != "C" else f"\\u{{{ord(char):x}}}"
        for char in text.expandtabs(1)
    )
    shown = _encodable(shown, getattr(sys.stderr, "encoding", "") or "ascii")
    if sys.stderr is not None and sys.stderr.isatty():
        # Lines that are too wide for the terminal are broken at spaces, under their own indent.
        lines = []
        for line in shown.split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            wrapper = textwrap.TextWrapper(
                shutil.get_terminal_size().columns,
                subsequent_indent=f"{indent}  " if indent else "",
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines += wrapper.wrap(line) or [""]
        shown = "\n".join(lines)
    click.echo(shown, err=True, nl=False)


def _encodable(text: str, encoding: str) -> str:
    """The text as a terminal of that encoding can show it; control characters are removed."""
    text = "".join(char for char in text if char == "\n" or unicodedata.category(char)[0] != "C")
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        folded = unicodedata.normalize("NFKD", text.translate(_ASCII))
        kept = "".join(char for char in folded if not unicodedata.combining(char))
        return kept.encode("ascii", "replace").decode("ascii")
    return text


def print_lines(lines: Sequence[str]) -> None:
    """Lines for a person, in characters that the terminal can show, and in colour on one that has it."""
    _needs_output()
    text = _encodable("\n".join(lines), sys.stdout.encoding or "ascii")
    # https://no-color.org
    forced = bool(os.environ.get("FORCE_COLOR"))
    on_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if os.environ.get("NO_COLOR") or not (forced or on_terminal):
        click.echo(text)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    Console(force_terminal=True, soft_wrap=True).print(styled)


def prose(*sentences: str) -> list[str]:
    """Sentences for a person, in lines that fit the terminal."""
    from perfsim.report.text import paragraphs

    return paragraphs(*sentences)


@dataclass(frozen=True)
class Answer:
    """What a verb prints: with `--json` a document (text in parts is one already), else lines."""

    document: Callable[[], Any]
    lines: Callable[[], Sequence[str]]
    check: Callable[[], Any] = bool
    """Raises what is wrong with it, once it is printed."""
    page: str | Path = ""
    """Where its page is, which the last line says."""
    verdict: str = ""
    """What stands for its lines where little is to be printed."""

    def print(self, *, as_json: bool) -> None:
        if not as_json:
            print_lines([*self.lines(), *([f"Report: {self.page}"] if self.page else [])])
        else:
            from perfsim.report.table import document_text

            document = self.document()
            _needs_output()
            for part in document if isinstance(document, Iterator) else [document_text(document)]:
                click.echo(part.encode("utf-8"), nl=False)  # whatever the terminal's encoding


def prints(verb: Callable[..., Answer]) -> Callable[..., None]:
    """The option `--json` of a verb, whose answer is printed."""

    @json_option
    @functools.wraps(verb)
    def printing(*args: Any, as_json: bool, **options: Any) -> None:
        answer = verb(*args, **options)
        answer.print(as_json=as_json)
        answer.check()

    return printing


def must(holds: object, error: PerfsimError) -> None:
    """Raise the error of an answer that does not hold."""
    if not holds:
        raise error


_STYLES = (
    (re.compile(r"^.*\n(?=-{4,}$)", re.MULTILINE), "bold"),
    (re.compile(r"^-{4,}$", re.MULTILINE), "dim"),
    (re.compile(r"^\*\S.*$", re.MULTILINE), "bold green"),
    (re.compile(r"^serious(?=:? )", re.MULTILINE), "bold red"),
    (re.compile(r"^warning(?=:? )", re.MULTILINE), "bold yellow"),
    (re.compile(r"(?<=^Report: ).*$|(?<=^Trace: ).*$", re.MULTILINE), "underline"),
)
"""Heading and rule of a table, its best row, caveats, files."""


def _needs_output() -> None:
    """Remove the bar, whose line the answer would share; PerfsimError where standard output is closed."""
    if _RUNNING:
        _RUNNING[-1].stop()
    if sys.stdout is None:
        raise PerfsimError("standard output is closed: the answer cannot be printed")


def progress(*, quiet: bool = False, in_a_log: bool = False) -> Callable[[str], None]:
    """A function that tells what is being computed: by a bar on a terminal, elsewhere by lines `in_a_log`."""
    meter = _RUNNING[-1] if _RUNNING else _Meter()
    meter.quiet = quiet
    if quiet or sys.stderr.isatty() or not in_a_log:
        return meter.tell
    return lambda message: write_error(f"{message}\n")
