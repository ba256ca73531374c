"""Reasons to trust a prediction less, from its question, its plan, its run and the published runs on record.

docs/caveats.md lists the codes. Published runs that count are those on the same kind of system with the same
constants of the device (`bands.Reached.like`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, get_args

from perfsim.base.spec import CHANGED
from perfsim.base.text import covering
from perfsim.costs.wafer import PEAK
from perfsim.interop import gaps_of
from perfsim.machines import machine_of
from perfsim.machines.machine import is_borrowed
from perfsim.prediction.bands import MARGIN, Hidden, Reached, Traits, precision_class, unknowns_of
from perfsim.prediction.question import DEFAULT_BATCH_PER_DEVICE, Question
from perfsim.prediction.run import Evaluation
from perfsim.prediction.why import Why
from perfsim.specs.hardware import DeviceSpec, LinkSpec
from perfsim.specs.layout import ParallelLayout, settings
from perfsim.specs.trainers import ANY, TRAINERS, that_run
from perfsim.strategies import Plan
from perfsim.work.counts import attention_flop_per_step, model_flop_per_step

Severity = Literal["serious", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""Worst first."""
Concern = Literal["step", "target", "memory", "question"]
"""What a caveat is about: the time of a step, the tokens to the target, memory, or what was asked."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """One reason to trust an answer less; docs/caveats.md lists the codes."""

    code: str
    """Its name, as in the list of caveats."""
    severity: Severity
    """serious, warning or info."""
    text: str
    """What is the case; after the first semicolon, what follows from it."""

    @property
    def headline(self) -> str:
        """The part of the text that a verdict quotes: all before the first semicolon."""
        return self.text.partition(";")[0]

    def rank(self) -> tuple[int, int]:
        """By severity, then by the order of `CODES`: the lower, the worse."""
        return SEVERITIES.index(self.severity), [*CODES].index(self.code)

    @classmethod
    def of(cls, code: str, words: str, factor: float = 1.0) -> Caveat:
        """A caveat with the severity of its code; `factor` tells how far outside the published runs it is."""
        severity, _ = CODES[code]
        if isinstance(severity, float):
            severity = "serious" if factor > severity else "warning"
        return cls(code, severity or "warning", words)


CODES: Mapping[str, tuple[Severity | float | None, Concern]] = {
    "calibration-borrowed": ("serious", "step"),
    "device-outside": ("serious", "step"),
    "experts-outside": ("serious", "step"),
    "offload-outside": ("serious", "step"),
    "speed-of-another": ("serious", "step"),
    "layout-unreleased": ("warning", "step"),
    "model-imported": ("warning", "step"),
    "few-runs": (None, "step"),
    "release-peak": ("serious", "step"),
    "release-borrowed": ("warning", "step"),
    "precision-outside": ("serious", "step"),
    "memory-above-limit": ("serious", "memory"),
    "zero3-ranks-outside": (2.0, "step"),
    "devices-outside": (4.0, "step"),
    "mfu-above-published": ("warning", "step"),
    "zero3-with-tensor": ("warning", "step"),
    "hidden-communication": (3.0, "step"),
    "parameters-outside": (10.0, "step"),
    "positions-outside": ("warning", "step"),
    "sequence-outside": ("warning", "step"),
    "shape-outside": ("warning", "step"),
    "micro-batch-outside": ("warning", "step"),
    "data-sheet-unread": ("warning", "step"),
    "link-borrowed": ("warning", "step"),
    "link-uncalibrated": ("warning", "step"),
    "input-assumed": ("warning", "step"),
    "sparsity-assumed": ("warning", "target"),
    "critical-batch-extrapolated": ("warning", "target"),
    "target-loss": ("warning", "target"),
    "batch-never-observed": ("warning", "target"),
    "batch-at-edge": ("warning", "target"),
    "cluster-scaled": (None, "step"),
    "as-of": ("info", "question"),
    "memory-tight": ("info", "memory"),
    "batch-indivisible": ("warning", "question"),
    "batch-default": ("info", "question"),
    "runtime-unnamed": ("info", "step"),
    "layout-defaults": ("info", "question"),
}
"""All codes; of equal severity the earlier one is worse. A number is the factor outside the published runs
above which a caveat is serious, a warning below; None: its severity depends on the run. Second, what the
caveat is about.

assumed: the one public ZeRO 3 run on three times as many ranks as any scored run takes 62 % longer than
predicted, while errors by number of devices or by size of the model show no trend inside their ranges. Three
times the communication that any published run hides is more than a third of a step.
"""

NEAR_LIMIT = 0.04
"""Memory is tight where its share is below the limit by at most this."""
FEW_RUNS = 8
"""assumed: with fewer published runs their errors say little of the next one."""
LIKE_SIZE = 1.5
"""A model counts as outside the sizes of the published runs beyond this factor."""
_OF_THE_JOB = ("experts-outside", "sequence-outside", "shape-outside", "runtime-unnamed")
"""Codes of what a machine says of a job."""
_ALLOWED = ("calibration-borrowed", "release-borrowed", "devices-outside", "offload-outside")
"""Codes after whose text the machine says how its band allows for them."""


def caveats_of(
    evaluation: Evaluation, why: Why, allowed_share: float, more: Iterable[Caveat] = ()
) -> tuple[Caveat, ...]:
    """The caveats of a step and `more`, worst first; `allowed_share` of a device's memory may be used."""
    plan = evaluation.plan
    runs = Reached.like(plan)
    # The user's own steps show what all runs of their machine have alike.
    cluster = evaluation.cluster
    own = cluster is not None and not cluster.others_than(plan.job.runtime.stack)
    said = {unknown.code: unknown.words for unknown in unknowns_of(plan) if not (own and unknown.shared)}
    caveats = [Caveat.of(code, words) for code, words in said.items() if code in _OF_THE_JOB]
    for caveat in (
        *_measured(plan),
        *_evidence(plan, runs),
        *_outside(plan, runs),
        *_unreleased(plan),
        *_of_run(evaluation),
        *_inputs(plan, why.cause, allowed_share),
        *more,
    ):
        allows = caveat.code in _ALLOWED and caveat.code in said
        caveats.append(replace(caveat, text=f"{caveat.text}; {said[caveat.code]}") if allows else caveat)
    return tuple(sorted(caveats, key=Caveat.rank))


def _measured(plan: Plan) -> Iterator[Caveat]:
    """Constants that were measured on another device, link or release, or not at all."""
    system = plan.system
    machine = machine_of(system)
    device = system.device
    constants = device.calibration
    borrowed = is_borrowed(device)
    if borrowed and constants is not None:
        words = f"no measurement of {device.name}: the constants of {constants.name} are used"
        yield Caveat.of("calibration-borrowed", words)
    yield from _unread(device, ("peak", "memory.bandwidth"))
    releases = machine.releases(system, plan.job.recipe)
    if releases is not None and constants is not None:
        wanted, used = releases
        if used == PEAK:
            yield Caveat.of("release-peak", "peak efficiency, which no software release reaches")
        elif wanted != used:
            words = f"no measurement of software release {wanted}: the speed of {used} is used"
            yield Caveat.of("release-borrowed", words)
        elif borrowed:
            measured = f"was measured on {constants.name} only, as a fraction of its peak"
            yield Caveat.of("release-borrowed", f"software release {used} {measured}")
    # A device alone uses no link, and a node alone none between nodes.
    joined = (1, machine.devices_per_node(system) or 1)
    for link, size in zip(machine.links(system), joined, strict=False):
        if plan.topology.num_devices <= size:
            break
        yield from _unread(link, ("bandwidth",))
        if link.calibration is None:
            words = f"no measurement of collectives on {link.name}: its data sheet sets their speed"
            yield Caveat.of("link-uncalibrated", words)
        elif is_borrowed(link):
            words = f"collectives on {link.name} have the constants of {link.calibration.name}"
            yield Caveat.of("link-borrowed", words)


def _unread(spec: DeviceSpec | LinkSpec, figures: Iterable[str]) -> Iterator[Caveat]:
    """Rates of a device or a link that its description gives without a source."""
    for name in figures:
        if spec.assumed.get(name, CHANGED) != CHANGED:
            words = f"{name} of {spec.name} is assumed: {spec.assumed[name]}"
            yield Caveat.of("data-sheet-unread", words)


def _evidence(plan: Plan, runs: Sequence[Reached]) -> Iterator[Caveat]:
    """How many published runs there are, and whether they trained in this precision."""
    device = plan.system.device
    kind = plan.system.kind
    if not runs:
        known = any(row.kind == kind for row in Reached.recorded())
        where = f"{device.name} in a {kind}" if known else f"a {kind}"
        words = f"no published run on {where}; no prediction of it was ever checked"
        yield Caveat.of("device-outside", words)
        return
    most = max(row.num_devices for row in runs)
    if len(runs) < FEW_RUNS:
        severity: Severity = "serious" if plan.topology.num_devices > most else "warning"
        measured_here = any(row.device == device.name for row in runs)
        where = "" if measured_here else f" with the constants of {device.constants}"
        words = f"{len(runs)} published runs{where}, at most {most:,} {machine_of(plan.system).unit}"
        yield Caveat("few-runs", severity, words)
    precision = Traits.of(plan).precision
    published = {precision_class(row.precision) for row in runs}
    if precision not in published:
        others = ", ".join(sorted(published))
        words = f"no published run in {precision}; the constants were fitted to runs in {others}"
        yield Caveat.of("precision-outside", words)


def _outside(plan: Plan, runs: Sequence[Reached]) -> Iterator[Caveat]:
    """Sizes and settings that no published run has."""
    model = plan.job.model
    if gaps := gaps_of(model):
        yield Caveat.of("model-imported", f"not expressible of {model.name}'s file: {' and '.join(gaps)}")
    tokens = plan.job.seq_length
    if tokens > (positions := model.max_position_embeddings):
        words = f"sequences of {tokens:,} tokens, while {model.name} has {positions:,} positions"
        yield Caveat.of("positions-outside", f"{words}: set the recipe's seq_length")
    if not runs:
        return
    layout = plan.layout
    traits = Traits.of(plan)
    yield from _above(
        "devices-outside",
        traits.num_devices,
        [row.num_devices for row in runs],
        f"{{factor}} times as many {machine_of(plan.system).unit} as in any published run "
        "(at most {most:,.0f})",
    )
    size = traits.parameters
    least = min(row.parameters for row in runs)
    most = max(row.parameters for row in runs)
    if size > most * LIKE_SIZE or size * LIKE_SIZE < least:
        bound, which = (most, "any published run") if size > most else (least, "the smallest published run")
        words = f"{_rounded(size / bound)} times the parameters of {which} ({bound / 1e9:.3g} billion)"
        yield Caveat.of("parameters-outside", words, max(size / bound, bound / size))
    if traits.sharded:
        yield from _above(
            "zero3-ranks-outside",
            layout.data,
            [row.data for row in runs if row.sharded],
            "ZeRO 3 over {factor} times as many data ranks as in any published run (at most {most:,.0f}); "
            "its communication may be hidden less well than predicted",
        )
    if traits.sharded and traits.tensor and not any(row.sharded and row.tensor > 1 for row in runs):
        words = "ZeRO 3 together with tensor parallelism: no published run has both"
        yield Caveat.of("zero3-with-tensor", words)
    if getattr(layout, "offloads", None):
        words = "states are offloaded, which no published run on record does; measured updates on CPUs of "
        yield Caveat.of("offload-outside", f"{words}A100s differ by more than twice")
    like = [row for row in runs if (row.sharded, row.tensor > 1) == (traits.sharded, traits.tensor)]
    yield from _above(
        "micro-batch-outside",
        layout.micro_batch_size * tokens,
        [row.micro_batch_tokens for row in like if row.micro_batch_tokens],
        "a micro-batch with {factor} times the tokens of any published run with such a layout ({most:,.0f})",
    )


def _unreleased(plan: Plan) -> Iterator[Caveat]:
    """A tool with the speed of another, and a layout that it cannot run, with the tools that can today."""
    limits = plan.job.runtime.limits
    framework = plan.job.runtime.framework
    if limits is None or not isinstance(plan.layout, ParallelLayout):
        return
    if framework is not None and limits.tool != framework.tool:
        words = f"layouts are what {limits.name} runs, and their speed is that of {framework.name}"
        yield Caveat.of("speed-of-another", f"{words}; --runs-on {framework.tool or ANY} plans for it")
    if lacks := limits.lacks(plan.layout, plan.job):
        others = " and ".join(TRAINERS[tool].title for tool in that_run(plan.layout, plan.job))
        known = f"of today's releases {others} can" if others else "no released framework runs it"
        yield Caveat.of("layout-unreleased", f"{limits.name} cannot run {' and '.join(lacks)}; {known}")


def _rounded(factor: float) -> str:
    """A factor in two digits and without an exponent: `0.031`, `1.4`, `120`."""
    return f"{float(f'{factor:.2g}'):,.10g}"


def _above(code: str, value: float, published: Sequence[float], words: str) -> Iterator[Caveat]:
    """A caveat where a value is above the published ones; its words take the factor and the largest."""
    most = max(published, default=inf)
    if value > most:
        yield Caveat.of(code, words.format(factor=_rounded(value / most), most=most), value / most)


def _of_run(evaluation: Evaluation) -> Iterator[Caveat]:
    """A step that hides more, uses devices better or is scaled more than published runs show."""
    plan = evaluation.plan
    hidden = Hidden.of(plan, evaluation.trace.hidden_share)
    factor = hidden.share / hidden.published if hidden.published else inf
    if hidden.cost and factor > MARGIN:
        words = (
            f"{100 * hidden.share:.0f} % of the step hides communication, while published runs hide at most "
            f"{100 * hidden.published:.0f} %; how much that slows the compute next to it is an "
            f"extrapolation: the band allows up to {100 * hidden.cost:.2g} % of the step"
        )
        yield Caveat.of("hidden-communication", words, factor)
    mfu = evaluation.mfu
    if above := Reached.best_below(plan, mfu):
        best, words = above
        masked = plan.job.model.causal * attention_flop_per_step(plan.job) / 2
        bare = mfu * (1 - masked / model_flop_per_step(plan.job))
        told = "take it as optimistic"
        if MARGIN * bare <= best.mfu:
            told = f"{100 * bare:.0f} % without masked attention"
        yield Caveat.of(
            "mfu-above-published",
            f"MFU {100 * mfu:.0f} % lies above the {100 * best.mfu:.0f} % of the best published run on "
            f"{best.device} {words}: {told}; that is {best.id}, on {best.num_devices:,}",
        )
    if cluster := evaluation.cluster:
        others = cluster.others_than(plan.job.runtime.stack)
        severity: Severity = "serious" if mfu > 1.0 else "warning" if cluster.is_wide or others else "info"
        cannot = "; an MFU above 100 % cannot be: other software ran its steps" if mfu > 1.0 else ""
        apart = f"; these ran under {others} by prediction, this step does not" if others else ""
        yield Caveat("cluster-scaled", severity, f"{cluster.note}{cannot}{apart}")


def _inputs(plan: Plan, cause: str, allowed_share: float) -> Iterator[Caveat]:
    """Memory that fragmentation could make too small, and inputs without a source that decide the answer."""
    share = plan.memory_share
    used = f"{100 * share:.1f} % of memory is used"
    limit = f"the limit of {100 * allowed_share:.4g} %"
    if share > allowed_share:
        yield Caveat.of("memory-above-limit", f"{used}, above {limit}; fragmentation could end the run")
    elif share > allowed_share - NEAR_LIMIT:
        yield Caveat.of("memory-tight", f"{used}, near {limit}")
    fields = machine_of(plan.system).inputs_of(cause, plan)
    unknown = [
        path for path, reason in plan.system.assumed.items() if reason != CHANGED and covering(path, fields)
    ]
    if unknown:
        words = f"{cause} limits the step and rests on assumed values: {', '.join(unknown)}"
        yield Caveat.of("input-assumed", words)
    if plan.job.recipe.weight_sparsity:
        words = "a sparse model is assumed to need as many tokens as the dense one; known for few models"
        yield Caveat.of("sparsity-assumed", words)


def batch_caveats(question: Question) -> list[Caveat]:
    """A caveat on the batch where the question gives none: the recipe's, or a default per device."""
    if question.batch is not None:
        return []
    batch = question.job.global_batch_size
    words = (
        f"no batch was given: {DEFAULT_BATCH_PER_DEVICE} sequences per device are used, {batch:,} in all; "
        "the step time depends on it (--batch, --batch-per-device)"
    )
    if question.recipe.batch_over(question.devices) is not None:
        words = f"no batch was given: the recipe's {batch:,} sequences are used"
    return [Caveat.of("batch-default", words)]


def default_settings(question: Question, plan: Plan) -> list[Caveat]:
    """Settings that matter and that a layout's text leaves at defaults, with the usual ones of Megatron."""
    if not isinstance(question.layout, str):
        return []
    named = {name for _, name, _ in settings(question.layout)}
    known = machine_of(plan.system).usual_settings(plan.layout, plan.job.recipe)
    left = [setting for setting in known if setting.name not in named]
    if not left:
        return []
    usual = [setting.usual for setting in left if setting.usual]
    megatron = usual and plan.job.runtime.takes_plans == "megatron"
    tail = f"; Megatron users usually set {', '.join(usual)}" if megatron else ""
    words = f"left at defaults by the layout: {', '.join(f'{name} {value}' for name, value, _ in left)}"
    return [Caveat.of("layout-defaults", words + tail)]
