"""Test support for strategies and perfsim itself: promises of a strategy, and toys.

The author of a strategy calls `check_strategy(MyStrategy())` in a test.
"""

from perfsim.testing.conformance import PROMISES, BrokenPromise, Case, cases_for, check_strategy

__all__ = ["PROMISES", "BrokenPromise", "Case", "cases_for", "check_strategy"]
