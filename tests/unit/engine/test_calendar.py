"""Acts at instants."""

from __future__ import annotations

import simpy

from perfsim.engine.calendar import Calendar


def test_acts_of_one_time_are_one_instant_in_the_order_of_entry() -> None:
    env = simpy.Environment()
    calendar = Calendar(env)
    done = []
    for key in "ab":
        calendar.at(2.0, key, done.append)
    calendar.at(1.0, "c", done.append)
    env.run()
    assert (done, calendar.instants, env.now) == (["c", "a", "b"], 2, 2.0)


def test_the_end_of_an_instant_comes_after_acts_that_acts_enter() -> None:
    env = simpy.Environment()
    calendar = Calendar(env)
    done = []

    def act(key: str) -> None:
        done.append(key)
        if key == "a":
            calendar.at_end_of_instant(lambda: done.append("end"))
            calendar.at(calendar.now_s, "b", act)

    calendar.at(1.0, "a", act)
    env.run()
    assert done == ["a", "b", "end"]
    assert calendar.instants == 1


def test_an_act_that_is_taken_back_leaves_no_event() -> None:
    env = simpy.Environment()
    calendar = Calendar(env)
    done = []

    def act(key: str) -> None:
        done.append(key)
        calendar.at(3.0, "never", act)
        calendar.at_end_of_instant(lambda: calendar.take_back(3.0, "never"))

    calendar.at(1.0, "a", act)
    env.run()
    assert (done, env.now, calendar.instants) == (["a"], 1.0, 1)
