"""How every verb prints: JSON for programs, lines for people, progress on standard error."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import click

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
    click.echo(shown, err=True, nl=False)


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
    """Lines for a person, in characters that the terminal can show."""
    from perfsim.report.text import encodable

    _needs_output()
    click.echo(encodable("\n".join(lines), sys.stdout.encoding or "ascii"))


def _needs_output() -> None:
    """Raise PerfsimError where standard output is closed: an answer that nobody gets is no success."""
    if sys.stdout is None:
        raise PerfsimError("standard output is closed: the answer cannot be printed")


def progress(*, quiet: bool) -> Callable[[str], None]:
    """A function that tells what is being computed, on a terminal only."""

    def tell(message: str) -> None:
        if not quiet and sys.stderr.isatty():
            write_error(f"... {message}\n")

    return tell
