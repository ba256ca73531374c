"""Shell scripts are followed as far as they can be without being run."""

from __future__ import annotations

import pytest

from perfsim.interop.shell import UNKNOWN, flags_of


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("run --n 3", "3"),
        ("run --n=3", "3"),
        ("N=3\nrun --n $N", "3"),
        ("N=3; run --n ${N}", "3"),
        ("export N=3\nrun --n ${N}", "3"),
        ("run --n ${N:-3}", "3"),
        ("N=5\nrun --n ${N:-3}", "5"),
        ("A=2\nrun --n $((A * 4 + 1))", "9"),
        ("A=2\nB=$((8 / A))\nrun --n $B", "4"),
        ("ARGS='--n 3'\nrun $ARGS", "3"),
        ('ARGS="--n 3"\nARGS="$ARGS --m 4"\nrun $ARGS', "3"),
        ("ARGS=(--m 4)\nARGS+=(--n 3)\nrun ${ARGS[@]}", "3"),
        ('ARGS=(\n  --n 3 # three\n  --m "a b"\n)\nrun "${ARGS[@]}"', "3"),
        ("run \\\n  --m 4 \\\n  --n 3\n", "3"),
        ("if [ 1 -eq 1 ]; then\n N=3\nelse\n N=4\nfi\nrun --n $N", "3"),
        ("S=7B\nif [[ $S == 13B ]]; then N=4; elif [[ $S == 7B ]]; then N=3; else N=5; fi\nrun --n $N", "3"),
        ("N=3\nif [ -f x ]; then N=4; fi\nrun --n $N", UNKNOWN),
        ("run --n $(nproc)", UNKNOWN),
        ("run --n $MISSING", UNKNOWN),
        ("run --n $((1 < 2))", UNKNOWN),
        ("run --n $((5 | 2))", UNKNOWN),
        ("echo --m 1\nrun --n 3", "3"),
        ("run --flag --n 3", "3"),
        ("run --n '$N'", "$N"),
        ("--m 4\n--n 3\n", "3"),
        ("A=(--n 3)\nB=(--m 4)\n", "3"),
        ("run --n 3 2>&1 | tee log", "3"),
        ('A=("--n 3" "--m 4")\nrun ${A[@]}', "3"),
        ('A=()\nA+=("--n 3")\nrun ${A[@]}', "3"),
        ("if [[ 1 == 2 ]] || [[ 3 == 3 ]]; then N=3; else N=4; fi\nrun --n $N", "3"),
        ("if [[ 1 == 1 ]] && [[ 3 == 4 ]]; then N=4; else N=3; fi\nrun --n $N", "3"),
        ("if [ 1 = 1 ] && [ 2 = 2 ]; then N=3; else N=4; fi\nrun --n $N", "3"),
        ("N=3\nif [ -f x ] && [ 1 = 1 ]; then N=4; fi\nrun --n $N", UNKNOWN),
        ("N=3\n[ 1 -eq 2 ] && N=4\nrun --n $N", "3"),
        ("N=4\n[ 1 -eq 1 ] && N=3\nrun --n $N", "3"),
        ("N=3\n[ -f x ] && N=4\nrun --n $N", UNKNOWN),
        ("N=\n[ -z $N ] || N=4\ncd . && run --n ${N:-3}", "3"),
        ('N=${1:-"3"}\nrun --n $N', "3"),
        ("for x in 1 2; do N=$x; done\nrun --n 3", "3"),
        ("A=(--m)\nA+=(4 --n 3)\nrun ${A[@]}", "3"),
        ("N=a\nN+=b\nrun --n $N", "ab"),
        ('run --n "a\\"b"', 'a"b'),
        ("if [ 1 = 1 ]; then [ 1 = 2 ] || N=3; fi\nrun --n $N", "3"),
        ("N=1\nif [ 1 = 1 ]; then N=3; elif [ 1 = 2 ] && [ 1 = 1 ]; then N=4; else N=5; fi\nrun --n $N", "3"),
    ],
)
def test_a_flag_has_the_value_that_the_shell_would_give_it(script: str, value: str) -> None:
    flags, _ = flags_of(script, "--n")
    assert flags["n"] == value


@pytest.mark.parametrize(
    "script",
    ["", "'", '"', "${", "$((", "$((1/0))", "fi", "done", "if", "A=(", "run --n ${A:-${B:-${C", "\\"],
)
def test_a_broken_script_ends_in_flags_or_none(script: str) -> None:
    assert isinstance(flags_of(script, "--n")[0], dict)


def test_a_variable_that_doubles_itself_stays_bounded() -> None:
    script = "A=aaaaaaaaaa\n" + "A=$A$A$A$A\n" * 40 + "run --n $A"
    assert len(str(flags_of(script, "--n")[0]["n"])) <= 20_000
