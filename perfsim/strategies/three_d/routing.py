"""How unevenly tokens are routed to the ranks that hold experts, and what a capacity limits of it.

Every rank waits for the slowest in each layer, because its own tokens come back from all of them. So a layer
takes as long as the rank with most rows lets it, and all ranks stay alike. The popularity of an expert is
log-normal around equal shares, drawn with a fixed seed; a rank's is the mean of its experts, and the load is
the mean over draws of that of the fullest rank. Routing that a run forces to be balanced has load 1, and a
capacity factor limits the rows of an expert to so many times their equal share.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from perfsim.workload import Job, TrainingRecipe

SEED = 2026
DRAWS = 256
"""Layers and steps over which the fullest rank is averaged."""


def expert_load(job: Job, ranks: int) -> float:
    """Rows that the fullest of so many ranks computes, over the mean of all."""
    recipe, experts = job.recipe, job.model.experts
    if experts is None or recipe.routing == "balanced":
        return 1.0
    load = fullest_rank(experts.num_experts, ranks, recipe.routing_spread)
    return load if recipe.expert_capacity is None else min(load, recipe.expert_capacity)


def routing_notes(job: Job, ranks: int) -> tuple[str, ...]:
    """What uneven routing costs, in words; nothing where it is balanced."""
    load = expert_load(job, ranks)
    if load == 1.0:
        return ()
    more, saved = f"{load - 1:.1%}", f"{1 - 1 / load:.1%}"
    text = (
        f"the fullest of {ranks} ranks has {more} more rows of experts than the mean, and all wait for it; "
    )
    return (text + f"balanced routing would save {saved} of the time of experts and of their rows",)


@lru_cache(maxsize=1024)
def fullest_rank(experts: int, ranks: int, spread: float) -> float:
    """Mean over draws of the load of the fullest rank, whose experts' popularity has this deviation."""
    if ranks == 1 or spread == 0.0:
        return 1.0
    drawn = np.exp(spread * np.random.default_rng(SEED).standard_normal((DRAWS, experts)))
    by_rank = drawn.reshape(DRAWS, ranks, -1).mean(axis=2)
    return float((by_rank.max(axis=1) / by_rank.mean(axis=1)).mean())


def waits_for_rows(recipe: TrainingRecipe) -> bool:
    """Whether the host must learn how many rows go where: not with a fixed capacity or in a CUDA graph."""
    framework = recipe.framework
    if framework is None or framework.cuda_graph or recipe.expert_capacity is not None:
        return False
    return framework.expert_pass_s > 0
