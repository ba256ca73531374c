"""Every strategy in the registry, and every plug-in that is installed, keeps what the protocol promises."""

import pytest

from perfsim.strategies import strategy, strategy_names
from perfsim.testing import PROMISES, Case, cases_for
from perfsim.testing.conformance import Promise

PAIRS = [(name, case) for name in strategy_names() for case in cases_for(strategy(name))]
CASES = {f"{name}-{case.name.replace(' ', '_')}": case for name, case in PAIRS}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.mark.parametrize("promise", PROMISES.values(), ids=PROMISES.keys())
def test_the_promise_is_kept(promise: Promise, case: Case) -> None:
    case.check(promise)


def test_there_is_a_plan(case: Case) -> None:
    """Only a plain strategy may have no way to use all devices, or no layout that needs less memory."""
    little_memory = case.name == "a node with little memory" and case.strategy.name != "3d"
    too_many = case.strategy.name in ("tensor", "pipeline") and case.topology.num_devices > 8
    assert case.plans or too_many or little_memory
