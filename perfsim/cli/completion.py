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

LAYOUT = {
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "vpp", "mbs", "recompute_every", "layers_per_stage"), ()),
    "sp": ("true", "false"),
    "zero": ("0", "1", "2", "3"),
    "schedule": ("1f1b", "gpipe", "interleaved", "v-half", "v-min", "zb1p", "zb2p", "zbv"),
    "recompute": ("none", "selective", "full"),
}
"""Settings of a layout, and their values where they are words; a copy, so that little is loaded."""


def complete_layout(_context: click.Context, _parameter: click.Parameter, start: str) -> list[CompletionItem]:
    """The next setting of a layout that is not given yet, or its value."""
    before, comma, item = start.rpartition(",")
    name, equals, _ = item.partition("=")
    given = {part.partition("=")[0] for part in before.split(",")}
    items = [f"{name}={value}" for value in LAYOUT.get(name, ())] if equals else [f"{own}=" for own in LAYOUT]
    kept = [own for own in items if own.startswith(item) and own.partition("=")[0] not in given]
    return [CompletionItem(f"{before}{comma}{own}") for own in kept]


BASH = (
    ("    local response\n", """\
    local response line="${COMP_LINE:0:COMP_POINT}" words prefix=""
    IFS=' ' read -ra words <<< "$line"
    [[ $line == *' ' ]] && words+=("")
    local last="${words[-1]}"
    [[ $COMP_WORDBREAKS == *=* && $last == *=* ]] && prefix="${last%=*}="
"""),
    ('COMP_WORDS="${COMP_WORDS[*]}"', 'COMP_WORDS="$line"'),
    ("COMP_CWORD=$COMP_CWORD", "COMP_CWORD=$((${#words[@]} - 1))"),
    ("COMPREPLY+=($value)", 'COMPREPLY+=("${value#"$prefix"}"); [[ $value == *= ]] && compopt -o nospace'),
)  # fmt: skip
"""What makes click's script for bash complete `--layout tp=8,pp=`: bash takes `=` for the end of a word."""


COMPLETION_EXAMPLES = """\b
Once, in your shell:
  bash:  perfsim completion bash > ~/.perfsim-complete && echo '. ~/.perfsim-complete' >> ~/.bashrc
  zsh:   perfsim completion zsh > ~/.perfsim-complete && echo '. ~/.perfsim-complete' >> ~/.zshrc
  fish:  perfsim completion fish > ~/.config/fish/completions/perfsim.fish
"""


@click.command(cls=Verb, short_help="Print what completes names in your shell.", epilog=COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes verbs, options, models, systems and studies in SHELL."""
    from click.shell_completion import get_completion_class

    writer: Any = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    source = writer(root, {}, "perfsim", VARIABLE).source()
    for theirs, ours in BASH if shell == "bash" else ():
        source = source.replace(theirs, ours)
    click.echo(source)
