"""Upper bounds on the size of a question; a larger value is most likely a typing error.

Each bound is at least ten times the largest published run. Bounds are checked when a file is read, so the
error names the line and appears before any long computation.
"""

MOST_DEVICES = 2**20
MOST_MESH = 256
"""Devices of a node in which each has a link to every other one."""
MOST_SEQUENCES = 2**17
"""In one step, over all devices."""
MOST_LAYERS = 2**12
MOST_WIDTH = 2**20
"""Hidden size, and every other width of a layer."""
MOST_HEADS = 2**12
MOST_VOCABULARY = 2**24
MOST_POSITIONS = 2**24
"""Tokens of a sequence."""
MOST_CHOICES = 256
"""Entries of a list that need a plan each: batches, device counts, candidates."""
MOST_PARTS = 2**20
"""Compute units of a device, servers of a store, steps between two checkpoints, and the like."""
MOST_CASES = 10_000
"""In one file of runs."""
MOST_LAYER_PASSES = 2**20
"""Layers times micro-batches of one replica: each pass is a few tasks of the graph."""
MEMORY_LIMIT = 0.94
"""assumed: fragmentation of the allocator takes about 6 % of a device's memory."""


def passes_problem(num_layers: int, num_microbatches: int) -> str:
    """The error message for too many layer passes in a step; empty within the bound."""
    passes = num_layers * num_microbatches
    if passes <= MOST_LAYER_PASSES:
        return ""
    return (
        f"{num_layers} layers × {num_microbatches} micro-batches are {passes} passes, at most "
        f"{MOST_LAYER_PASSES} can be simulated; raise micro_batch_size or data, or lower the batch"
    )
