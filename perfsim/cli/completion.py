"""`perfsim completion`: names of models, systems and studies at the tabulator key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from perfsim.cli.verb import Verb

Completed = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_PERFSIM_COMPLETE"


def complete(kind: str) -> Completed:
    """A completion by the catalogue's names of a kind, and by files."""

    def names(_context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem]:
        from perfsim.catalog import default_catalog

        known = [name for name in default_catalog().names(kind) if name.startswith(start)]
        files = [CompletionItem(start, type="file")] if not known else []
        return [*(CompletionItem(name) for name in known), *files]

    return names


studies = complete("study")


EXAMPLES = """\b
Once, in your shell:
  bash:  perfsim completion bash > ~/.perfsim-complete && echo '. ~/.perfsim-complete' >> ~/.bashrc
  zsh:   perfsim completion zsh > ~/.perfsim-complete && echo '. ~/.perfsim-complete' >> ~/.zshrc
  fish:  perfsim completion fish > ~/.config/fish/completions/perfsim.fish
"""


@click.command(cls=Verb, short_help="Print what completes names in your shell.", epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes verbs, options, models, systems and studies in SHELL."""
    from click.shell_completion import get_completion_class

    writer: Any = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    click.echo(writer(root, {}, "perfsim", VARIABLE).source())
