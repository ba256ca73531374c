"""Verification of a step: all matrix products of its graph are compared with the model, some are executed.

The model alone says which products each layer has in each pass, of what shape. The graph says what all ranks
compute for all micro-batches. Every product must be there in every pass with the FLOPs of the closed form,
its local shape times its division must be the model's shape, what divides a sum must be summed over as many
ranks, and what divides columns must be divided alike in the product that reads them.

Some products are then executed in NumPy at the graph's real shapes: rows and columns drawn from the full-size
result, over the full depth, on the ranks' own slices, in fp32 accumulation from operands in the step's
precision. The result is compared with the undivided product in float64 within the forward error bound
|y - x w| <= gamma_k |x| |w|, gamma_n = n u / (1 - n u), which holds for any order of summation (N. J. Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition, 2002, lemma 3.1). On small integers, whose sums
are exact, it must be equal.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import numpy as np

from perfsim.base.arrays import Bools, Floats, Ints
from perfsim.base.errors import VerificationError
from perfsim.base.spec import Spec
from perfsim.base.units import number
from perfsim.prediction.question import Verify
from perfsim.prediction.run import Evaluation
from perfsim.specs.layout import Layout, ParallelLayout
from perfsim.specs.model import LayerKind, TransformerConfig, layer_kinds
from perfsim.specs.precisions import PRECISIONS
from perfsim.specs.recipe import Job
from perfsim.strategies.three_d.layers import expert_load
from perfsim.work import TaskGraph, Work
from perfsim.work.graph import HEAD, block_name
from perfsim.work.kernels import Kernel
from perfsim.work.layer import FLASH, padded_vocab_size
from perfsim.work.tensors import AXES, EXPERTS, is_whole, tensors_of

MOST_SAMPLES = 10_000
"""More than the classes of product in any step."""
ROWS = COLUMNS = 8
"""Rows and columns of a product's result that are computed, and at least one for each of its parts."""
INTEGERS = 3
"""Exact operands are integers from -INTEGERS to INTEGERS, so that sums over a million products are exact."""
SAME = 1e-9
"""Relative difference up to which FLOPs are equal."""


class SamplingSpec(Spec):
    """How many products of a step are executed, after all have been compared with the model."""

    mode: Verify = "sample"
    """off; sample: `tasks` classes of product, drawn in proportion to FLOPs; full: every class."""
    tasks: Annotated[int, *number(0, MOST_SAMPLES)] = 12
    seed: Annotated[int, *number(0, 2**32 - 1)] = 0


@dataclass(frozen=True, slots=True)
class SamplingSummary:
    """What was compared and what was executed, and whether it was right."""

    tasks_sampled: int
    """Classes of product that were executed."""
    tasks_total: int
    """Matrix products of the step that were compared with the model, of all ranks and micro-batches."""
    flop_share: float
    """Share of the step's matrix FLOPs in the executed classes."""
    worst_relative_error: float
    bound: float
    passed: bool
    by_partition: Mapping[str, int] = field(default_factory=dict)
    mode: str = "sample"
    worst: str = ""
    """The executed product closest to its bound: name, pass and division."""
    failed: tuple[str, ...] = ()
    """Differences from the model, and products that came out wrong."""
    not_summed: tuple[str, ...] = ()
    """Products whose sums over ranks the graph does not write, so that they are not compared."""


def sample_step(evaluation: Evaluation, spec: SamplingSpec) -> SamplingSummary | None:
    """Verify a step; None where it is off or the graph multiplies no matrices."""
    if spec.mode == "off" or not spec.tasks:
        return None
    return verify(evaluation.graph, evaluation.plan.job, evaluation.plan.layout, spec)


def must_be_right(summaries: Iterable[SamplingSummary]) -> None:
    """Raise VerificationError with every difference from the model and every wrong product."""
    wrong = [words for summary in summaries for words in summary.failed]
    if wrong:
        raise VerificationError("the step does not compute the model: " + "; ".join(wrong))


Pass = Literal["forward", "dgrad", "wgrad", "recompute"]
"""y = x w forward, dy wT, xT dy, and the forward once more."""
PASSES: tuple[Pass, ...] = ("forward", "dgrad", "wgrad")
RESULT: Mapping[Pass, tuple[str, str, str]] = {
    **dict.fromkeys(("forward", "recompute"), ("m", "n", "k")),
    "dgrad": ("m", "k", "n"),
    "wgrad": ("k", "n", "m"),
}
"""Rows and columns of a pass of the layer y (m, n) = x (m, k) w (k, n), and what it sums over."""
PARTNERS = {
    **dict.fromkeys(("qkv", "query", "pair"), "projection"),
    **{f"{prefix}fc1": f"{prefix}fc2" for prefix in ("", "shared_", "expert_")},
}
"""Products divided by columns and the product that reads these columns, divided by rows."""
QKV = ("query", "key", "value")
"""Matrices of one product `qkv`, unless queries pass through latents; a gate is with the MLP's first one."""
NOT_SUMMED = ("mtp_joint", "mtp_lm_head")
"""Products of multi-token prediction inside a task, after which graphs write their sums over ranks."""


class _Product(NamedTuple):
    """A product y (rows, n) = x (rows, k) w (k, n) for one token."""

    k: int
    n: int
    rows: float = 1.0
    whole: bool = False
    """Whether every tensor rank computes it for all tokens, unless sequence parallelism divides these."""


def _products(model: TransformerConfig, kind: LayerKind) -> dict[str, _Product]:
    """The products with weights of a layer, by name: its matrices, some joined by columns as in graphs."""
    products: dict[str, _Product] = {}
    for block in (kind, EXPERTS) if kind.experts else (kind,):
        rows = float(model.given_experts().top_k) if block == EXPERTS else 1.0
        for name, axes in tensors_of(model, block).items():
            if len(axes) < 2 or name.endswith("_bias"):
                continue
            k, n = (AXES[axis].length(model) for axis in axes[-2:])
            joined = name.replace("gate", "fc1")
            if name in QKV and model.latent_attention is None:
                joined = "qkv"
            columns = products[joined].n if joined in products else 0
            products[joined] = _Product(k, columns + n, rows, is_whole(axes))
    return products


class _Whole(NamedTuple):
    """What all ranks together compute of a product in one pass of a step."""

    flop: float
    k: int
    n: int
    """0: not compared."""


Key = tuple[int, str, Pass]
"""Layer, or HEAD; name of the product; pass."""


def _expected(job: Job, layout: Layout, *, fused: bool) -> dict[Key, _Whole]:
    """The products of a step; `fused`: attention is one kernel."""
    model = job.model
    tokens = float(job.tokens_per_step)
    copies = 1
    load = 1.0
    if isinstance(layout, ParallelLayout):
        # Tensor ranks that do not share the sequences each compute what no axis divides.
        copies = 1 if layout.sequence_parallel else layout.tensor
        load = expert_load(job, layout.expert)  # rows of the fullest rank of experts over the mean
    vocab = padded_vocab_size(model, layout.tensor)
    expected: dict[Key, _Whole] = {}

    def add(block: int, name: str, product: _Product, repeated: float = 1.0) -> None:
        flop = 2.0 * tokens * product.rows * product.k * product.n * repeated
        for which in PASSES:
            expected[block, name, which] = _Whole(flop, product.k, product.n)

    for block, kind in enumerate(layer_kinds(model)):
        for name, product in _products(model, kind).items():
            routed = load if name.startswith("expert_") else 1.0
            add(block, name, product, copies if product.whole else routed)
        core = _core(job, kind, fused=fused)
        expected |= {(block, name, "forward"): whole for name, whole in core.items()}
        if kind.mtp:
            add(block, "mtp_lm_head", _Product(model.hidden_size, vocab))
    reached = (job.recipe.lm_head_positions or job.seq_length) / job.seq_length
    add(HEAD, "lm_head", _Product(model.hidden_size, vocab, reached))
    return expected


def _core(job: Job, kind: LayerKind, *, fused: bool) -> dict[str, _Whole]:
    """The products of queries with keys and of probabilities with values, forward and backward."""
    s = job.seq_length
    queries = job.model.head_size
    values = job.model.value_size
    heads = float(job.global_batch_size * job.model.num_attention_heads)
    if not fused:
        shapes = {
            "scores": (queries, s),
            "context": (s, values),
            "context.dgrad_probabilities": (values, s),
            "context.dgrad_values": (s, values),
            "scores.dgrad_queries": (s, queries),
            "scores.dgrad_keys": (s, queries),
        }
        return {name: _Whole(2.0 * heads * s * k * n, k, n) for name, (k, n) in shapes.items()}
    # Pairs that the mask leaves: half of all, and in a window w s - w^2 / 2.
    window = min(kind.window or s, s)
    pairs = s * window - 0.5 * window**2 if job.model.causal else float(s) * s
    pairs *= (job.runtime.attention_length or s) / s
    # Its backward computes the scores again [2205.14135 Alg. 4].
    widths = {FLASH: queries + values, f"{FLASH}.backward": 3 * queries + 2 * values}
    return {name: _Whole(2.0 * heads * pairs * width, queries, 0) for name, width in widths.items()}


class _Shard(NamedTuple):
    """A product of the graph: the share of one rank, as its layer's y (m, n) = x (m, k) w (k, n)."""

    name: str
    which: Pass
    m: int
    k: int
    n: int
    kernel: Kernel

    def parts(self, divided: str) -> int:
        """Parts of k if it is `divided` by "row", or of n by "column"."""
        return self.kernel.parts if self.kernel.partition == divided else 1

    @property
    def whole(self) -> tuple[int, int]:
        """K and n of all parts."""
        return self.k * self.parts("row"), self.n * self.parts("column")

    @property
    def summed_over(self) -> int:
        """Ranks with a part of the sum of the result: over k forward, over n for the input's gradient."""
        return 1 if self.which == "wgrad" else self.parts("column" if self.which == "dgrad" else "row")

    @property
    def fits(self) -> bool:
        """Whether the FLOPs belong to the shape; experts compute `m` rows in the mean, rounded up."""
        kernel = self.kernel
        if kernel.op == "attention":
            return True
        if not kernel.grouped:
            return kernel.flop == 2.0 * kernel.m * kernel.n * kernel.k * kernel.batch
        rows = kernel.flop / (2.0 * self.n * self.k * kernel.batch)
        return self.m == max(1, math.ceil(rows * (1 - SAME)))

    @property
    def words(self) -> str:
        """Name, pass and division."""
        part = f" in {self.kernel.parts} parts" if self.kernel.parts > 1 else ""
        return f"{self.name} ({self.which}): {self.divided}{part}"

    @property
    def divided(self) -> str:
        """What is cut: column, row, streamed, heads or none."""
        core = self.kernel.batch > 1 and not self.kernel.grouped
        return "heads" if core or self.kernel.op == "attention" else self.kernel.partition


def _shards(work: Work) -> Iterator[_Shard]:
    """The products of a class of work."""
    for kernel in work.kernels:
        if kernel.op == "elementwise":
            continue
        name, _, suffix = kernel.name.rpartition(".")
        # The head of multi-token prediction ends its layer.
        prefix = "mtp_" if "lm_head" in kernel.name and not work.name.startswith("head") else ""
        if suffix == "dgrad":
            yield _Shard(prefix + name, "dgrad", kernel.m, kernel.n, kernel.k, kernel)
        elif suffix == "wgrad":
            yield _Shard(prefix + name, "wgrad", kernel.k, kernel.m, kernel.n, kernel)
        else:
            again = work.category != "forward" and "." not in kernel.name
            which: Pass = "recompute" if again else "forward"
            yield _Shard(prefix + kernel.name, which, kernel.m, kernel.k, kernel.n, kernel)


class _Found(NamedTuple):
    """The products of a graph."""

    flop: dict[Key, float]
    """Of all ranks and micro-batches, of one step in the mean."""
    shapes: dict[Key, set[tuple[int, int]]]
    """k and n of the whole product, as local shape times division."""
    parts: dict[tuple[int, str], set[int]]
    classes: dict[_Shard, float]
    """How often each shape is computed, by all ranks."""


def _found(graph: TaskGraph) -> _Found:
    found = _Found(defaultdict(float), defaultdict(set), defaultdict(set), defaultdict(float))
    shards = [tuple(_shards(work)) for work in graph.works]
    lowest = int(graph.block.min(initial=0))
    width = int(graph.block.max(initial=0)) - lowest + 1
    classes = graph.work.astype(np.int64) * width + graph.block - lowest
    ranks = np.array(graph.stands_for, dtype=np.float64)[graph.stream] / len(graph.step_ends)
    times = np.bincount(classes, ranks)
    for number_and_block in np.unique(classes).tolist():
        count = float(times[number_and_block])
        number, block = divmod(number_and_block, width)
        block = block + lowest if block + lowest >= 0 else HEAD
        computed = count * graph.works[number].share
        for shard in shards[number]:
            key = (block, shard.name, shard.which)
            found.flop[key] += computed * shard.kernel.flop
            found.shapes[key].add(shard.whole)
            found.parts[block, shard.name].add(shard.parts("row") * shard.parts("column"))
            found.classes[shard] += computed
    return found


def _differences(expected: Mapping[Key, _Whole], found: _Found) -> Iterator[tuple[str, int]]:
    """What the graph computes unlike the model, with its layer."""
    for key, whole in expected.items():
        block, name, which = key
        label = f"{name} ({which})"
        if key not in found.flop:
            yield f"{label} is missing", block
            continue
        share = found.flop[key] / whole.flop
        if abs(share - 1.0) > SAME:
            yield f"{label} has {share:.6g} times the model's FLOPs", block
        for k, n in found.shapes[key]:
            if k != whole.k or (whole.n and n != whole.n):
                yield f"{label} is {k} x {n} in all parts, the model's is {whole.k} x {whole.n}", block
    for key, flop in found.flop.items():
        block, name, which = key
        forward: Key = (block, name, "forward")
        if which == "recompute" and forward in expected:
            other_shapes = found.shapes[key] - found.shapes[forward]
            if abs(flop / expected[forward].flop - 1.0) > SAME or other_shapes:
                yield f"{name} is not computed again as it was", block
        elif key not in expected:
            yield f"{name} ({which}) is no product of the model", block
    for (block, name), parts in found.parts.items():
        partner = PARTNERS.get(name)
        if partner is not None and parts != found.parts.get((block, partner)):
            yield f"the columns of {name} are divided unlike the rows of {partner}", block


def _unsummed(graph: TaskGraph) -> Iterator[tuple[str, int]]:
    """Tasks with a part of a sum that no collective of as many ranks adds up."""
    works = graph.works
    needs = np.ones(len(works), dtype=np.int64)
    sums = np.zeros(len(works), dtype=np.int64)
    for index, work in enumerate(works):
        if not work.category.startswith("recompute"):
            parts = [shard.summed_over for shard in _shards(work) if shard.name not in NOT_SUMMED]
            needs[index] = max(parts, default=1)
        if work.group and work.op in ("all_reduce", "reduce_scatter"):
            sums[index] = work.group.size
    group = np.array([work.group or (0, 1, 0) for work in works], dtype=np.int64)
    writer = graph.writer[graph.reads.values]
    reader = graph.reads.row_of_value
    rank = graph.stream_ranks[graph.stream[writer]]
    start, stride, size = group[graph.work[reader]].T
    place = (rank - start) * np.sign(stride)
    inside = (place % np.abs(stride) == 0) & (place >= 0) & (place < np.abs(stride) * size)
    added = np.where(inside | (rank < 0), sums[graph.work[reader]], 0)
    # What a task adds or joins on the way to the collective is summed with it.
    joins = graph.is_compute[reader] & (needs[graph.work[reader]] == 1)
    same = (graph.block[writer] == graph.block[reader]) & joins
    for ranks in set(needs[needs > 1].tolist()):
        reached: Bools = np.zeros(len(graph), dtype=bool)
        reached[writer[added == ranks]] = True
        while (more := writer[same & reached[reader] & ~reached[writer]]).size:
            reached[more] = True
        lost = (needs[graph.work] == ranks) & ~reached
        for task in np.flatnonzero(lost).tolist():
            yield f"{works[graph.work[task]].name} is not summed over {ranks} ranks", int(graph.block[task])


class _Result(NamedTuple):
    """An executed product: the largest |y - x w| / (|x| |w|), and whether a product of integers is exact."""

    shard: _Shard
    relative_error: float
    bound: float
    exact: bool

    @property
    def closeness(self) -> float:
        """The error in units of the bound."""
        return self.relative_error / self.bound if self.exact else float("inf")


def _executed(shard: _Shard, whole: tuple[int, int], bits: int, rng: "np.random.Generator") -> _Result:
    """Rows and columns of a product (`whole`: its k and n) on the slices of all parts, and as a whole."""
    # The operands of the pass: x w, dy wT or xT dy.
    k, n = whole
    axes = {"m": shard.m, "k": k, "n": n}
    row, column, depth = RESULT[shard.which]
    cut = {"column": "n", "row": "k", "streamed": "k"}.get(shard.divided, "")
    size_of_part = {"n": shard.n, "k": shard.k}.get(cut, 0)
    parts = shard.kernel.parts
    rows = _drawn(axes[row], ROWS, parts if cut == row else 1, rng)
    columns = _drawn(axes[column], COLUMNS, parts if cut == column else 1, rng)
    sizes = ((len(rows), axes[depth]), (axes[depth], len(columns)))

    def computed(left: Floats, right: Floats) -> Floats:
        """The result in fp32, from what each part holds; entries that no part holds are not a number."""
        x, w = left.astype(np.float32), right.astype(np.float32)
        if shard.divided == "streamed" and depth == "k":
            # Weights arrive a row at a time, and each is added to the sums before.
            products = np.multiply(x.T[:, :, None], w[:, None], order="C")
            return np.asarray(np.add.reduce(products, axis=0), dtype=np.float64)
        result = np.full((len(rows), len(columns)), np.nan if cut in (row, column) else 0.0, dtype=np.float32)
        for part in range(parts):
            held = slice(part * size_of_part, (part + 1) * size_of_part)
            if cut == depth:
                result += x[:, held] @ w[held]
            elif cut == row:
                inside = (rows >= held.start) & (rows < held.stop)
                result[inside] = x[inside] @ w
            elif cut == column:
                inside = (columns >= held.start) & (columns < held.stop)
                result[:, inside] = x @ w[:, inside]
            else:
                result = x @ w
        return result.astype(np.float64)

    left, right = (_rounded(rng.uniform(-1.0, 1.0, size), bits) for size in sizes)
    error = np.abs(computed(left, right) - left @ right) / np.maximum(np.abs(left) @ np.abs(right), 1e-38)
    left, right = (rng.integers(-INTEGERS, INTEGERS + 1, size).astype(np.float64) for size in sizes)
    relative_error = float(np.where(np.isfinite(error), error, np.inf).max())
    bound = _gamma(axes[depth], 2.0**-24) + _gamma(axes[depth], 2.0**-53)
    exact = bool((computed(left, right) == left @ right).all())
    return _Result(shard, relative_error, bound, exact)


def _drawn(size: int, count: int, parts: int, rng: "np.random.Generator") -> Ints:
    """Distinct places along an axis, at least one in each of its parts."""
    count = min(size, max(count, parts))
    edges = np.linspace(0, size, count + 1).astype(np.int64)
    return np.asarray(rng.integers(edges[:-1], edges[1:]))


def _rounded(values: Floats, bits: int) -> Floats:
    """Numbers rounded to `bits` bits of significand."""
    # Veltkamp's splitting: in its product with 2^s + 1 a number loses its lowest s bits.
    product = values * (2.0 ** (53 - bits) + 1.0)
    return np.asarray(product - (product - values))


def _gamma(n: int, unit_roundoff: float) -> float:
    """Higham's gamma_n = n u / (1 - n u); infinite for n u >= 1, where no bound holds."""
    product = n * unit_roundoff
    return product / (1 - product) if product < 1 else float("inf")


def verify(graph: TaskGraph, job: Job, layout: Layout, spec: SamplingSpec) -> SamplingSummary | None:
    """Compare all products of a graph with a job's model, and execute some; None for a graph without any."""
    found = _found(graph)
    if not found.classes:
        return None
    fused = any(shard.kernel.op == "attention" for shard in found.classes)
    expected = _expected(job, layout, fused=fused)
    blocks: dict[str, set[int]] = defaultdict(set)
    for words, block in [*_differences(expected, found), *_unsummed(graph)]:
        blocks[words].add(block)
    failed = [
        f"{words} in {f'{len(of)} layers' if len(of) > 1 else block_name(min(of))}"
        for words, of in blocks.items()
    ]
    failed += [f"{shard.words} has FLOPs unlike its shape" for shard in found.classes if not shard.fits]
    # Fused kernels of attention hold several products; their FLOPs and sums are compared, not executed.
    flop = {shard: count * shard.kernel.flop for shard, count in found.classes.items()}
    drawable = [shard for shard in flop if shard.kernel.op == "gemm"]
    weights = np.array([flop[shard] for shard in drawable])
    rng = np.random.default_rng(spec.seed)
    count = len(drawable) if spec.mode == "full" else min(spec.tasks, len(drawable))
    picked = rng.choice(len(drawable), count, replace=False, p=weights / weights.sum())
    shapes = {(name, which): (whole.k, whole.n) for (_, name, which), whole in expected.items()}
    results = []
    for index in sorted(picked.tolist()):
        shard = drawable[index]
        first: Pass = "forward" if shard.which == "recompute" else shard.which
        # Under a narrow precision some operands have 16 bits or more.
        wide = "fp32" if shard.kernel.element_bytes > 2.0 else "bf16"
        usual = wide if PRECISIONS[job.recipe.precision].is_narrow else job.recipe.precision
        bits = PRECISIONS[shard.kernel.precision or usual].bits
        results.append(_executed(shard, shapes.get((shard.name, first), shard.whole), bits, rng))
    worst = max(results, key=lambda result: result.closeness)
    failed += [f"{result.shard.words} came out wrong" for result in results if not result.closeness <= 1.0]
    unsummed = {shard.name for shard in found.classes} & set(NOT_SUMMED)
    return SamplingSummary(
        tasks_sampled=len(results),
        tasks_total=round(sum(times * shard.kernel.batch for shard, times in found.classes.items())),
        flop_share=float(weights[picked].sum() / sum(flop.values())),
        worst_relative_error=worst.relative_error,
        bound=worst.bound,
        passed=not failed,
        by_partition=dict(sorted(Counter(result.shard.divided for result in results).items())),
        mode=spec.mode,
        worst=worst.shard.words,
        failed=tuple(failed),
        not_summed=tuple(sorted(unsummed)) if layout.tensor > 1 else (),
    )
