"""How every verb prints: JSON for programs, lines for people, progress on standard error."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from perfsim.cli.progress import present_meter
from perfsim.errors import PerfsimError


def refuse(message: str, code: int) -> NoReturn:
    """End with a message on standard error and an exit code."""
    write_error(f"error: {message}\n")
    sys.exit(code)


def write_error(text: str) -> None:
    """Print on standard error, with control characters written out: names may hold any."""
    shown = "".join(
        char if char == "\n" or unicodedata.category(char)[0] != "C" else f"\\u{{{ord(char):x}}}"
        for char in text.expandtabs(1)
    )
    if not shown.isascii() and sys.stderr is not None:
        from perfsim.report.text import encodable

        shown = encodable(shown, sys.stderr.encoding or "ascii")
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    click.echo(_fitted(shown) if on_terminal else shown, err=True, nl=False)


def _fitted(text: str) -> str:
    """The text with lines that are too wide for the terminal broken at spaces, under their own indent."""
    width = shutil.get_terminal_size().columns
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=f"{indent}  " if indent else "",
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)


def print_json(document: Any) -> None:
    """One JSON document on standard output, as UTF-8 whatever the terminal's encoding."""
    from perfsim.report.document import document_text

    _needs_output()
    click.echo(document_text(document).encode("utf-8"), nl=False)


def print_parts(parts: Iterable[str]) -> None:
    """The text of a JSON document in parts, as UTF-8."""
    _needs_output()
    for part in parts:
        click.echo(part.encode("utf-8"), nl=False)


def print_lines(lines: Sequence[str]) -> None:
    """Lines for a person, in characters that the terminal can show, and in colour on one that has it."""
    from perfsim.report.text import encodable

    _needs_output()
    text = encodable("\n".join(lines), sys.stdout.encoding or "ascii")
    if _has_colour():
        _print_coloured(text)
    else:
        click.echo(text)


def print_prose(*sentences: str) -> None:
    """Sentences for a person, in lines that fit the terminal."""
    from perfsim.report.terminal.layout import paragraph, terminal_width

    width = terminal_width()
    print_lines([line for sentence in sentences for line in paragraph(sentence, width)])


def print_answer(
    lines: Callable[[], Sequence[str]], verdict: str, page: str | Path | None, *, quiet: bool
) -> None:
    """An answer, or with `quiet` its verdict only, and where the report is."""
    if quiet:
        print_prose(verdict)
    else:
        print_lines(lines())
    if page:
        print_lines([f"Report: {page}"])


def _has_colour() -> bool:
    """Whether standard output is a terminal with colours that nobody switched off (https://no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


_STYLES = (
    (re.compile(r"^.*\n(?=-{4,}$)", re.MULTILINE), "bold"),
    (re.compile(r"^-{4,}$", re.MULTILINE), "dim"),
    (re.compile(r"^\*\S.*$", re.MULTILINE), "bold green"),
    (re.compile(r"^serious(?=:? )", re.MULTILINE), "bold red"),
    (re.compile(r"^warning(?=:? )", re.MULTILINE), "bold yellow"),
    (re.compile(r"(?<=^Report: ).*$|(?<=^Trace: ).*$", re.MULTILINE), "underline"),
)
"""Heading and rule of a table, its best row, caveats, files."""


def _print_coloured(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES:
        for match in pattern.finditer(text):
            styled.stylize(style, *match.span())
    Console(force_terminal=True, soft_wrap=True).print(styled)


def open_page(page: Path) -> None:
    """Open a page in the browser; where there is none, say where the page is."""
    if click.launch(str(page)) != 0:
        write_error(f"no browser was found: open {page} in one\n")


def _needs_output() -> None:
    """Remove the bar, whose line the answer would share; PerfsimError where standard output is closed."""
    present_meter().stop()
    if sys.stdout is None:
        raise PerfsimError("standard output is closed: the answer cannot be printed")


def progress(*, quiet: bool) -> Callable[[str], None]:
    """A function that tells what is being computed, on a terminal only."""
    meter = present_meter()
    meter.quiet = quiet
    return meter.tell
