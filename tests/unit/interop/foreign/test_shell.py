"""Shell scripts are followed as far as they can be without being run."""

import pytest

from perfsim.interop.shell import flags_of


@pytest.mark.parametrize(
    "script",
    ["", "'", '"', "${", "$((", "$((1/0))", "fi", "done", "if", "A=(", "run --n ${A:-${B:-${C", "\\"],
)
def test_a_broken_script_ends_in_flags_or_none(script: str) -> None:
    assert isinstance(flags_of(script, "--n")[0], dict)


def test_a_variable_that_doubles_itself_stays_bounded() -> None:
    script = "A=aaaaaaaaaa\n" + "A=$A$A$A$A\n" * 40 + "run --n $A"
    assert len(str(flags_of(script, "--n")[0]["n"])) <= 20_000
