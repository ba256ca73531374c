"""How large a question may be: past these bounds a slip of the finger is likelier than a wish.

Each lies at least ten times above the largest published run; what is refused is refused when a
file is read, with its place, and not after minutes of work.
"""

from __future__ import annotations

MOST_DEVICES = 2**17
MOST_SEQUENCES = 2**17
"""Of one step, all devices together."""
MOST_LAYERS = 2**12
MOST_WIDTH = 2**20
"""Hidden size, and every other width of a layer."""
MOST_HEADS = 2**12
MOST_VOCABULARY = 2**24
MOST_POSITIONS = 2**24
"""Tokens of a sequence."""
MOST_CHOICES = 256
"""Entries of a list that each cost a plan: batches, device counts, candidates."""
MOST_CASES = 10_000
"""Of one file of runs."""
MOST_LAYER_PASSES = 2**20
"""Layers times micro-batches of one replica: each is a handful of tasks of the graph."""


def passes_problem(num_layers: int, num_microbatches: int) -> str:
    """What is wrong with a step of so many layers and micro-batches; empty where nothing is."""
    passes = num_layers * num_microbatches
    if passes <= MOST_LAYER_PASSES:
        return ""
    return (
        f"{num_layers} layers x {num_microbatches} micro-batches are {passes} passes, at most "
        f"{MOST_LAYER_PASSES} can be simulated; raise micro_batch_size or data, or lower the batch"
    )
