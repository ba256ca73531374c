"""The command line: verbs that parse, call and print. Everything heavy loads inside a verb."""

import io
import os
import re
import sys
from typing import Any, NoReturn

import click

from perfsim import __version__
from perfsim.base.errors import InputError, PerfsimError, blamed
from perfsim.base.text import OTHER_NAMES, nearest
from perfsim.cli import ask as _ask  # noqa: F401  # defines its verbs
from perfsim.cli import verbs as _verbs  # noqa: F401
from perfsim.cli.options import VERBS
from perfsim.cli.output import write_error
from perfsim.prediction.question import ASKED, Asked

_INTERRUPTED = 130
"""The exit code of a verb that Ctrl-C ends: 128 and the number of the signal, as shells have it."""
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # Matrices here are small: more BLAS threads only compete, and they change the last bits of results.
    os.environ.setdefault(_variable, "1")
_EXAMPLE = """\b
Start here:
  perfsim study gpt3_20b --compare 3d,weight-streaming
  perfsim init my_study.yaml
"""
_OTHER_VERBS = {"compare": "diff", "list": "show", "predict": "run", "simulate": "run"}
"""Verbs of other tools, and what they are here."""


def _refuse(message: str, code: int) -> NoReturn:
    """End with a message on standard error and an exit code."""
    write_error(f"error: {message}\n")
    sys.exit(code)


def _helpful(error: click.ClickException) -> str:
    """What click says of a wrong value or option, with what is allowed or the nearest that is."""
    if isinstance(error, click.NoSuchOption):
        from perfsim.specs.layout import SHORT_NAMES

        name = error.option_name.lstrip("-").replace("-", "_")
        of_layout = name in {*SHORT_NAMES, *SHORT_NAMES.values()}
        places = {"--layout": name if of_layout else "", "--set": Asked.inside(name)}
        written = [f"{option} {path}=VALUE" for option, path in places.items() if path]
        if name in OTHER_NAMES:
            written = [f"--{OTHER_NAMES[name]} VALUE"]
        if not written and name not in ASKED:
            return error.message
        error.possibilities = []  # type: ignore[misc]
        if written:
            return f"{error.message} Write {written[0]}."
        by = ASKED[name].by
        of_study = f"; a study takes --set {name}=VALUE" if "study" in by else ""
        return f"{error.message} perfsim {'run' if 'run' in by else 'plan'} has it{of_study}."
    kind = getattr(getattr(error, "param", None), "type", None)
    if isinstance(kind, click.IntRange | click.FloatRange) and " is not a valid " in error.message:
        least, most = (f"{end:,.10g}" if end is not None else "" for end in (kind.min, kind.max))
        whole = "whole number" if isinstance(kind, click.IntRange) else "number"
        value = error.message.partition(" is not a valid ")[0]
        return f"{value} is no {whole} from {least}{f' to {most}' if most else ' on'}."
    value, is_none, known = error.message.partition(" is not one of ")
    if not is_none:
        return error.message
    near = nearest(value.rpartition("'")[0].rpartition("'")[2], re.findall("'(.*?)'", known))
    return f"{error.message} Did you mean {near!r}?" if near else error.message


class _Refusing(click.Group):
    """A group whose verbs end in a message and an exit code, never in a traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that is asked for; UsageError with the nearest one for a name that is none."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            near = _OTHER_VERBS.get(args[0]) or nearest(args[0], self.commands)
            guess = f"; did you mean `perfsim {near}`?" if near else f"; known: {', '.join(self.commands)}"
            ctx.fail(f"No such command {args[0]!r}{guess}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run a verb; PerfsimError carries its own exit code."""
        try:
            super().main(*args, **{**kwargs, "standalone_mode": False})
        except (click.exceptions.Abort, KeyboardInterrupt):
            _refuse("interrupted before the end", _INTERRUPTED)
        except click.ClickException as error:
            said = io.StringIO()
            helpful = _helpful(error)
            error.show(said)
            write_error(said.getvalue().replace(error.message, helpful))
            sys.exit(InputError.exit_code)
        except PerfsimError as error:
            _refuse(str(error), error.exit_code)
        except MemoryError:
            _refuse("the computer has too little memory for this question", 1)
        except OSError as error:
            reason = error.strerror or str(error)
            _refuse(f"{reason}: {error.filename}" if error.filename else reason, 1)
        except (Exception, SystemExit) as error:
            if reason := blamed(error):
                _refuse(reason, 1)
            raise
        sys.exit(0)


@click.group(cls=_Refusing, epilog=_EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="perfsim")
def main() -> None:
    """Predict how to train a model, on what, and how long until it is good."""


for _verb in VERBS:
    main.add_command(_verb)
