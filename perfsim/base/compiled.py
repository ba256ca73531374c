"""Functions in machine code, kept on disk by numba; import this only where numba is installed."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys  # type: ignore[attr-defined]

F = TypeVar("F", bound=Callable[..., Any])


class _Kept(FunctionCache):
    """Machine code on disk, loaded without what numba needs only to compile.

    Its tables for lowering, with SciPy behind them, take 0.4 s, and the code a hundredth of that. Where none
    is kept, the compiler fills the tables in itself.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh = partial(rtsys.initialize, target_context)
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        finally:
            del target_context.refresh


def compiled(function: F, *, allocates: bool = True) -> F:
    """The same function in machine code, compiled at its first call unless it is kept on disk."""
    # Without allocations references to arrays need no count, which may take longer than all else.
    counts: dict[str, Any] = {} if allocates else {"_nrt": False}
    dispatcher = njit(**counts)(function)
    dispatcher._cache = _Kept(function)  # type: ignore[no-untyped-call]  # noqa: SLF001 (as `cache=True` does)
    return cast(F, dispatcher)
