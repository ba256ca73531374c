"""Entry points of other packages, loaded so that an error names the entry point and stays its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from perfsim.base.errors import PerfsimError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUPS = ("perfsim.strategies", "perfsim.machines")
Made = TypeVar("Made")


class PlugInError(PerfsimError):
    """A plug-in that cannot be loaded or used; a defect of its package."""


def made_by(point: EntryPoint, use: Callable[[Any], Made]) -> Made:
    """What `use` makes of the object that an entry point names; PlugInError for whatever it raises."""
    try:
        return use(point.load())
    except (Exception, SystemExit) as error:
        raise PlugInError(f"{described(point)} cannot be used: {_in_one_line(error)}") from error


def described(point: EntryPoint) -> str:
    """`the plug-in 'mine' of perfsim.strategies (mine.module:Mine)`."""
    return f"the plug-in {point.name!r} of {point.group} ({point.value})"


def blamed(error: BaseException) -> str:
    """What a plug-in raised, in one line, where its code is in the traceback; else empty."""
    import traceback
    from importlib.metadata import entry_points

    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for group in GROUPS:
        for point in entry_points(group=group):
            package = point.module.partition(".")[0]
            if package != "perfsim" and any(name.partition(".")[0] == package for name in modules):
                return f"{described(point)} failed: {_in_one_line(error)}"
    return ""


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
