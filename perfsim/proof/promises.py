"""What a plan promises of its graph: the elements that messages are priced for, and micro-batches in flight.

Memory is planned for the micro-batches that a schedule promises. The order of the graph may hold more, which
overflows, or fewer, where a warm-up that is too short makes neighbours wait.
"""

from collections import defaultdict
from collections.abc import Iterator

from perfsim.costs.memory import state_bytes
from perfsim.proof.parameters import WORDS, Place, Share
from perfsim.proof.program import Fault, Message
from perfsim.specs.layout import ParallelLayout
from perfsim.strategies import Plan
from perfsim.strategies.schedules import Pass, Slot, held_at_peak, in_flight, schedule_called
from perfsim.strategies.streaming.passes import StreamingPlan
from perfsim.strategies.three_d.data import GRADIENTS_SHARDED
from perfsim.strategies.three_d.emission import ThreeDPlan
from perfsim.work import EMBEDDING, HEAD, Kind, TaskGraph, Work
from perfsim.work.graph import rank_of
from perfsim.work.kernels import FULL
from perfsim.work.layer import padded_vocab_size
from perfsim.work.tensors import EXPERTS, is_whole

# Messages: bytes that the graph prices against elements that the execution moves.
#
# Sizes are of whole messages, as nccl-tests count them. These rules cover where a graph prices other elements
# than NumPy holds: vectors of a layer that every tensor peer holds whole are priced once over all peers;
# vocabularies are priced padded to whole tiles; final norms and LM-head biases are not priced; a word table
# that embedding and LM head share on one rank is priced once, except where each pass reduces its own (ZeRO
# 2); under ZeRO 1 a tied table is summed in the whole gradient buffer, though only a shard of it is complete;
# under sequence parallelism a transfer between stages is executed whole (each peer computes the whole norm)
# and priced at each peer's share.

ROUNDING = 1.0
"""Elements of rounding for each shard of a tensor that does not divide evenly."""


class StreamingPrices:
    """How graphs of weight streaming count bytes and elements."""

    def __init__(self, plan: StreamingPlan) -> None:
        system = plan.topology.system
        self.head = Share(plan.job.model, plan.job.seq_length).layouts[HEAD]
        self.element_bytes = plan.job.recipe.element_bytes
        self.other_bytes = {"parameters": system.weight_bytes, "gradients": system.gradient_bytes}

    def bytes_per_element(self, message: Message) -> float:
        return self.other_bytes.get(message.content, self.element_bytes)

    def counted(self, message: Message, elements: int, _: Work) -> float:
        """Executed elements as the graph counts them."""
        return elements - (self.head.sizes.get("head_bias", 0) if HEAD in message.blocks else 0)

    def rounding(self, _: Message, __: Work) -> float:
        """Elements by which they may differ."""
        return ROUNDING


class GpuPrices:
    """How graphs of GPU strategies count bytes and elements."""

    def __init__(self, plan: ThreeDPlan) -> None:
        layout = self.layout = plan.layout
        model = self.model = plan.job.model
        self.recipe = plan.job.recipe
        self.held = Share(model, plan.job.seq_length, Place(layout.tensor))
        rows = padded_vocab_size(model, layout.tensor) / layout.tensor
        self.padding = (rows - self.held.rows) * model.hidden_size
        """Elements of the rows that pad a word table to whole tiles."""

    def bytes_per_element(self, message: Message) -> float:
        if message.content in ("statistics", "norm"):
            return FULL
        if message.content in ("gradients", "table", "shards"):
            return state_bytes(self.recipe).reduced
        return self.recipe.element_bytes

    def counted(self, message: Message, elements: int, work: Work) -> float:
        layout = self.layout
        if work.kind is Kind.COMM_SEND:
            return elements / (layout.tensor if layout.sequence_parallel else 1)
        if message.content == "table":
            shards = layout.shards if layout.zero_stage == GRADIENTS_SHARDED else 1
            complete = layout.shards if layout.zero_stage else 1
            return elements * complete / shards + self.padding / shards
        shards = layout.shards if message.content == "shards" or work.op == "broadcast" else 1
        # Embedding and LM head in one message share one word table in it, unless each pass reduces its own.
        apart = layout.zero_stage == GRADIENTS_SHARDED and layout.replicas > 1 and layout.num_stages > 1
        shared = self.model.tied_embeddings and not (apart and message.content in ("gradients", "shards"))
        unheld: list[float] = []  # priced elements of each block, less those that a rank holds
        for block in message.blocks:
            if block >= EXPERTS:
                continue
            held = self.held.layouts[block]
            if block >= 0:
                vectors = (name for name, axes in held.axes.items() if len(axes) == 1 and is_whole(axes))
                unheld.append((1 / layout.tensor - 1) * sum(map(held.sizes.__getitem__, vectors)))
            elif block == HEAD and EMBEDDING in message.blocks and shared:
                unheld.append(-held.size)
            else:
                unheld.append(self.padding - (held.size - held.sizes[WORDS[HEAD]] if block == HEAD else 0))
        return elements + sum(unheld) / shards

    def rounding(self, message: Message, work: Work) -> float:
        """Elements by which they may differ; every tensor of a block is divided alone."""
        if message.content == "shards" or work.op == "broadcast":
            return ROUNDING * sum(len(self.held.layouts[block].shapes) for block in message.blocks)
        if message.content == "norm":  # one number
            return 0.0
        return ROUNDING * (self.layout.shards if message.content == "table" else 1)


# Micro-batches in flight.

PASSES: dict[str, Pass] = {"forward": "F", "backward": "B", "dgrad": "B", "wgrad": "W"}
"""By the last part of an operation's name."""
COUNTED = ("attention", "attention.qkv", "layer")
"""The part of a layer that is counted, of attention one task, or layers that are written as one task."""


def held_unlike_promised(graph: TaskGraph, plan: Plan) -> Iterator[Fault]:
    """Each rank whose peak, in micro-batches of its whole stage, is not what its schedule promises."""
    layout = plan.layout
    # A promise in micro-batches does not tell layers of chunks that have different numbers of them. Of joined
    # passes one frees layers while the other still makes some.
    if not isinstance(layout, ParallelLayout) or layout.layers_per_stage is not None:
        return
    schedule = schedule_called(layout.schedule)
    if schedule.has("joins"):
        return
    passes_of: dict[int, list[Slot]] = defaultdict(list)
    """By rank: the passes of every layer in the order of its tasks, with the layer as the chunk."""
    for task in graph.tasks():
        name, _, end = task.work.op.rpartition(".")
        rank = rank_of(task.stream)
        if rank is not None and name in COUNTED and end in PASSES:
            passes_of[rank].append(Slot(PASSES[end], rank, task.block, task.tag))
    for rank, passes in passes_of.items():
        stage = rank // layout.width
        chunks = (1,) * layout.virtual_pipeline
        promised = in_flight(schedule, stage, layout.pipeline, chunks, plan.num_microbatches)
        layers = {slot.chunk: 1 for slot in passes}
        if len(layers) % len(chunks):
            continue
        held = held_at_peak(passes, layers)
        if held != promised:
            actual, planned = (
                " or ".join(f"{at.activations:.4g} + {at.weight_inputs:.4g}" for at in moments)
                for moments in (held, promised)
            )
            detail = (
                f"at its peak it holds {actual} micro-batches, schedule {layout.schedule} promises {planned} "
                "(activations + inputs of weight gradients)"
            )
            yield Fault("memory", f"stage {stage} (gpu{rank})", "activations in flight", detail)
