"""For tests of strategies and of perfsim itself: the promises of a strategy, toys, second ways to figures.

The author of a strategy calls `check_strategy(MyStrategy())` in a test of their own.
"""

from perfsim.testing.conformance import (
    PROMISES,
    BrokenPromise,
    Case,
    cases_for,
    check_promise,
    check_strategy,
)

__all__ = ["PROMISES", "BrokenPromise", "Case", "cases_for", "check_promise", "check_strategy"]
