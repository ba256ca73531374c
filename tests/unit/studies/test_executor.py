"""Answers are the same wherever they are computed; workers that die lose no item but their own."""

import copy
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest

from perfsim.base import errors
from perfsim.base.limits import Limits, limited
from perfsim.studies import executors

DIES = "__import__('os')._exit(9)"
SUMS = [(number, f"{number} + 1") for number in range(6)]


def answers_of(executor: executors.Executor, items: list[tuple[int, str]]) -> dict[int, object]:
    """The items are expressions, since functions of tests cannot be imported by other processes."""
    with executor.answers(eval, items) as finished:
        return dict(finished)


def test_a_process_of_its_own_is_started_for_no_fewer_than_two_items() -> None:
    assert executors.executor_for(None, most=1) is executors.executor_for(1) is executors.IN_PROCESS
    assert executors.executor_for(8, most=3).size == 3


@pytest.mark.parametrize(
    ("jobs", "address", "message"),
    [
        *((jobs, None, "whole number of processes") for jobs in (0, 1.5, "two")),
        (None, "foo", "is no address of a scheduler"),
        (None, "http://127.0.0.1:1", "is no address of a scheduler"),
    ],
)
def test_what_is_no_number_and_no_address_is_refused(jobs: Any, address: str | None, message: str) -> None:
    with pytest.raises(errors.InputError, match=message):
        executors.executor_for(jobs, address)


@pytest.mark.slow
def test_an_item_that_kills_its_process_fails_and_loses_no_other() -> None:
    items = [*SUMS[:2], (90, DIES), *SUMS[2:]]
    answers = answers_of(executors.Processes(2), items)
    failed = answers.pop(90)
    assert isinstance(failed, errors.PerfsimError)
    assert "died each time" in str(failed)
    assert answers == {number: number + 1 for number in range(6)} == answers_of(executors.IN_PROCESS, SUMS)


def test_an_error_or_a_limit_reached_elsewhere_ends_the_iteration_and_all_processes() -> None:
    with pytest.raises(ZeroDivisionError):
        answers_of(executors.Processes(2), [*SUMS, (7, "1 / 0")])
    with limited(Limits(max_seconds=0.0)), pytest.raises(errors.LimitError):
        answers_of(executors.Processes(2), [(1, "__import__('time').sleep(0.5)")])


def test_a_worker_has_the_limits_and_the_version_of_who_asks() -> None:
    with pytest.raises(errors.LimitError, match=r"stopped after 5 s \(--max-seconds\): at work"):
        executors.in_worker(in_time, Limits(max_seconds=5.0), 6.0, "", "at work")
    limits = Limits(max_seconds=5.0, max_events=9, events=4)
    assert executors.in_worker(in_time, limits, 1.0, "", "at work") == ("done", 0)
    with pytest.raises(errors.InputError, match=r"a worker has perfsim .*, and this machine 0\.0\.0"):
        executors.in_worker(str, Limits(), 0.0, "0.0.0+other", 1)


def in_time(words: str) -> str:
    from perfsim.base.limits import present_limits

    present_limits().in_time(lambda: words)
    return "done"


@pytest.mark.parametrize(
    "error",
    [
        errors.InputError([errors.Problem("wrong", file="a.yaml", line=3)]),
        errors.LayoutError("no layout"),
        errors.LimitError("stopped"),
        errors.UnknownNameError("model", "gpt", ["gpt3_xl"]),
        errors.MemoryCapacityError(1.5, "too small", lambda: "take more"),
        errors.PerfsimError("broken"),
    ],
)
def test_an_error_comes_back_from_a_worker_as_it_was(error: errors.PerfsimError) -> None:
    back = copy.copy(error)  # takes it apart as pickling does
    assert (type(back), str(back), back.problems) == (type(error), str(error), error.problems)
    assert getattr(back, "ratio", None) == getattr(error, "ratio", None)


def test_an_address_at_which_nobody_listens_is_refused_within_seconds() -> None:
    pytest.importorskip("distributed")
    began_s = time.monotonic()
    with pytest.raises(errors.PerfsimError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1: \w+"):
        executors.executor_for(None, "tcp://127.0.0.1:1")
    assert time.monotonic() - began_s < executors.CONNECT_S / 2


class _Losing(executors._Pooled):
    """Workers whose first answers are lost."""

    died = ()
    lost = (CancelledError,)
    tries_alone = 0

    def __init__(self, losses: int, most_asked: int) -> None:
        self.left = losses
        self.most_asked = most_asked

    def window(self) -> int:
        if not self.most_asked:
            raise executors.ExecutorLost("went away")
        return 1

    def submit(self, function: Callable[[Any], Any], item: Any) -> Future[Any]:
        self.left, self.most_asked = self.left - 1, self.most_asked - 1
        answer: Future[Any] = Future()
        if self.left < 0:
            answer.set_result(function(item))
        else:
            answer.set_exception(CancelledError())
        return answer

    def end(self, *, at_once: bool) -> None:
        del at_once


def test_a_lost_answer_is_asked_for_again_until_nobody_is_left_to_ask() -> None:
    assert answers_of(_Losing(3, 9), SUMS[:1]) == {0: 1}
    with pytest.raises(executors.ExecutorLost):
        answers_of(_Losing(3, 3), SUMS[:1])


PARENT = """
from perfsim.studies.executors import Processes
SLEEPS = "(open('{folder}/' + str(__import__('os').getpid()), 'w').close(), __import__('time').sleep(120))"
if __name__ == "__main__":
    with Processes(2).answers(eval, [(0, SLEEPS), (1, SLEEPS)]) as finished:
        dict(finished)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """They went on until their item was done, for hours in a long sweep."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(folder=tmp_path), encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script)]) as parent:
        workers = waited(lambda: [path for path in tmp_path.iterdir() if path.name.isdigit()], 2, 60)
        parent.kill()
    assert waited(lambda: [path for path in workers if is_alive(int(path.name))], 0, 30) == []


def waited(listed: Callable[[], list[Path]], number: int, limit_s: float) -> list[Path]:
    """What is listed as soon as there are so many, at the latest after the limit."""
    until_s = time.monotonic() + limit_s
    while len(listed()) != number and time.monotonic() < until_s:
        time.sleep(0.05)
    return listed()


def is_alive(process: int) -> bool:
    """Whether a process runs: one that ended may wait as a zombie for somebody who asks for its status."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
