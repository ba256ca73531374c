"""What every verb has in its help: examples that can be copied at any width."""

from __future__ import annotations

import re
import shutil

import click

_WORD = re.compile(r"'[^']*'|\S+")


class Verb(click.Command):
    """A verb whose examples are broken like shell commands where the terminal is narrow."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 (click's)
        """Write the examples below the options."""
        width = shutil.get_terminal_size().columns
        heading, *commands = (self.epilog or "").replace("\b", "").strip().splitlines() or [""]
        formatter.write(f"\n  {heading}\n" if heading else "")
        for command in commands:
            formatter.write(f"{_shell_lines(command, width)}\n")


class VerbGroup(Verb, click.Group):
    """The same for a verb of several parts."""


def _shell_lines(command: str, width: int) -> str:
    """A command in lines no wider than `width`, which a shell reads as one."""
    lines = ["   "]
    for word in _WORD.findall(command):
        if len(lines[-1]) + 1 + len(word) + 2 > width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append("     ")
        lines[-1] += f" {word}"
    return "\n".join(lines)
