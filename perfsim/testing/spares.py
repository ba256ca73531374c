"""A simulated machine with spare units: the second way to the time that it stands still for repairs."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import simpy


def run_on_spares(useful_s: float, spares: int, repair_s: float, mttf_s: float, seed: int) -> float:
    """Wall time of so much progress on a machine that fails every `mttf_s` of progress, on average.

    A spare replaces a failed unit at once; without one the machine stands still until a unit is repaired.
    Every unit is repaired on its own, in `repair_s`.
    """
    env, rng = simpy.Environment(), np.random.default_rng(seed)
    shelf = simpy.Container(env, init=spares, capacity=spares + 1)

    def repair() -> Generator[simpy.Event, None, None]:
        yield env.timeout(repair_s)
        yield shelf.put(1)

    def run() -> Generator[simpy.Event, None, None]:
        left_s = useful_s
        while True:
            stretch_s = float(rng.exponential(mttf_s))
            if stretch_s >= left_s:
                yield env.timeout(left_s)
                return
            yield env.timeout(stretch_s)
            left_s -= stretch_s
            env.process(repair())
            yield shelf.get(1)

    env.run(until=env.process(run()))
    return float(env.now)
