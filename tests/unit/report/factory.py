"""A study as a run would answer it: 128 A100s with 3D parallelism, and 1, 4 and 16 CS-2s.

Step times follow `fixed + share of batch`, so curves have the shapes of real ones. Loaded by path from the
conftest of the unit tests and of the browser tests.
"""

from dataclasses import replace
from html.parser import HTMLParser
from math import inf
from typing import Any

from perfsim.convergence.bill import Rates
from perfsim.convergence.critical_batch import CriticalBatch
from perfsim.convergence.time_to_accuracy import TimeToAccuracy
from perfsim.convergence.uncertain import Draws
from perfsim.convergence.wall_clock import HealthyRun
from perfsim.costs.memory import MemoryUse
from perfsim.prediction.bands import Accuracy
from perfsim.prediction.verification import SamplingSummary
from perfsim.prediction.why import LinkUse, Why
from perfsim.report.page import Section
from perfsim.report.study import study_page
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.prices import Prices
from perfsim.studies.answers import Answer, Assumption, Decision, Spread, StudyResult, named
from perfsim.studies.batches import BatchPoint
from perfsim.studies.decision import Option, decide
from perfsim.studies.timeline import TimelineBar
from perfsim.studies.verdict import grounds, sentence

SEQ = 2048
CRITICAL = CriticalBatch(2.43e7, 2.0, "zhang_2024", "a test")
TARGET_TOKENS = 4e11
GIB = 2**30
ASSUMPTIONS = """\
hardware | A100 peak, bf16 | 312 TFLOP/s | nvidia_a100_datasheet, page 1 | datasheet
hardware | CS-2 ports | 12 x 100 Gb/s | cerebras_cs2_whitepaper | datasheet
costs | GEMM efficiency | median error 4.1 % over 312 points | gemm_bf16_a100.csv | fit
convergence | critical batch | 24.3 million tokens | zhang_2024, equation 6 | fit
convergence | goodput | 100 % | no failures are modelled | assumption
"""


def sections(result: StudyResult) -> dict[str, Section]:
    """The sections of the page of a study by their ids."""
    return {section.anchor: section for section in study_page(result).sections}


def _time(batch: int, step_s: float) -> TimeToAccuracy:
    return TimeToAccuracy(float(batch * SEQ), step_s, TARGET_TOKENS, CRITICAL, 0.0)


def _curve(
    fixed_s: float, per_sequence_s: float, least: int, layout: dict[str, object]
) -> tuple[BatchPoint, ...]:
    times = {
        batch: _time(batch, fixed_s + per_sequence_s * batch) for batch in (least * 2**i for i in range(7))
    }
    return tuple(
        BatchPoint(batch, time.batch_tokens, time.step_time_s, time.steps, time.time_s, time.band_s, layout)
        for batch, time in times.items()
    )


def pipeline_timeline(stages: int, microbatches: int, forward_s: float) -> tuple[TimelineBar, ...]:
    """By lanes: compute of each stage, its sends, and the optimizer at the end."""
    bars = []
    for stage in range(stages):
        compute, sends, data = (f"stage {stage}/{stream}" for stream in ("compute", "pipeline", "data"))
        clock = stage * forward_s
        for microbatch in range(microbatches):
            for kind, takes_s in (("forward", forward_s), ("backward", 2 * forward_s)):
                end = clock + takes_s
                sent = end + 0.1 * forward_s
                bars.append(TimelineBar(compute, kind, kind, clock, end, microbatch))
                bars.append(TimelineBar(sends, "send", "pipeline_communication", end, sent, microbatch))
                clock = end
        reduced = clock + 3 * forward_s
        bars.append(TimelineBar(data, "reduce gradients", "data_communication", clock, reduced))
        bars.append(TimelineBar(compute, "optimizer", "optimizer", reduced, reduced + forward_s))
    return tuple(bars)


def streaming_timeline(layers: int, layer_s: float) -> tuple[TimelineBar, ...]:
    """Weights out of MemoryX, forward and backward on the wafer, gradients back, updates behind."""
    bars = []
    for position, layer in enumerate([*range(layers), *reversed(range(layers))]):
        clock = (position + 1) * layer_s
        end = clock + 1.9 * layer_s
        kind = "forward" if position < layers else "backward"
        sent = clock - 0.2 * layer_s
        bars.append(TimelineBar("memoryx/out", f"weights {layer}", "weight_stream", clock - layer_s, sent))
        bars.append(TimelineBar("cs_0/compute", f"{kind} {layer}", kind, clock, clock + 0.95 * layer_s))
        if kind == "backward":
            up = (clock + layer_s, end)
            bars.append(TimelineBar("swarmx/up", f"gradients {layer}", "gradient_stream", *up))
            bars.append(TimelineBar("memoryx/update", f"update {layer}", "update", end, end + 0.5 * layer_s))
    return tuple(bars)


def _candidate(
    strategy: str, system: str, noun: str, machine: str, curve: tuple[BatchPoint, ...], **known: Any
) -> Answer:
    best = min(curve, key=lambda point: point.time_to_accuracy_s)
    shares = known.pop("shares")
    return Answer(
        strategy=strategy,
        system=system,
        num_devices=int(machine.partition(" ")[0]),
        machine=machine,
        devices_noun=noun,
        model="gpt3_20b",
        why=Why("compute", {}, "more devices", "Bound by compute."),
        layout=best.layout,
        global_batch_size=best.global_batch_size,
        step_time_s=best.step_time_s,
        tokens_per_s=best.batch_tokens / best.step_time_s,
        time=_time(best.global_batch_size, best.step_time_s),
        batch_curve=curve,
        breakdown_s={name: share * best.step_time_s for name, share in shares.items()},
        **known,
    )


def _gpus() -> Answer:
    layout = {"tensor": 8, "pipeline": 4, "data": 4, "micro_batch_size": 1, "sequence_parallel": True}
    curve = _curve(0.6, 0.0125, 96, layout | {"recompute": "selective", "schedule": "1f1b"})
    state = {"parameters": 1.3 * GIB, "gradients": 2.6 * GIB, "optimizer": 7.8 * GIB}
    parts = [state | {"activations": (22 - 5 * stage) * GIB, "logits": 0.0} for stage in range(4)]
    parts[3]["logits"] = 1.7 * GIB
    step_s = min(curve, key=lambda point: point.time_to_accuracy_s).step_time_s
    return _candidate(
        "3d",
        "dgx-a100-80gb",
        "A100-80GB",
        "128 A100-80GB (16 DGX)",
        curve,
        mfu=0.481,
        hfu=0.507,
        bubble_fraction=0.07,
        exposed_communication_fraction=0.155,
        peak_memory_bytes=33.7 * GIB,
        utilisation={"scale_up": LinkUse(0.21, 0.78), "nic": LinkUse(0.04, 0.96)},
        shares={
            "compute": 0.71,
            "recompute": 0.05,
            "tensor_communication": 0.12,
            "pipeline_communication": 0.01,
            "data_communication": 0.025,
            "optimizer": 0.015,
            "bubble": 0.07,
        },
        memory=tuple(MemoryUse(f"stage {stage}", part, 80.0 * GIB) for stage, part in enumerate(parts)),
        timeline=pipeline_timeline(4, 192, step_s / (3.2 * 192)),
        notes=(),
    )


def _wafers(systems: int) -> Answer:
    layout = {"tensor": 1, "pipeline": 1, "data": systems, "micro_batch_size": 30, "recompute_layers": 2}
    curve = _curve(1.7, 0.62 / systems, 30 * systems, layout)
    step_s = min(curve, key=lambda point: point.time_to_accuracy_s).step_time_s
    held = {"activations": 27.4e9, "weight buffers": 3.2e9, "workspace": 1.1e9}
    return _candidate(
        "weight-streaming",
        "cs-2",
        "CS-2",
        f"{systems} CS-2",
        curve,
        mfu=0.27,
        hfu=0.31,
        bubble_fraction=0.0,
        exposed_communication_fraction=0.14,
        peak_memory_bytes=31.7e9,
        utilisation={"memoryx": LinkUse(0.4, 1.0), "io": LinkUse(0.41, 1.0)},
        shares={"compute": 0.83, "weight_stream_stall": 0.11, "gradient_stream": 0.03, "update": 0.03},
        memory=tuple(MemoryUse(f"wafer {number}", held, 40e9) for number in range(systems)),
        timeline=streaming_timeline(44, step_s / 90),
        notes=("activations of two layers are made again",) if systems == 1 else (),
    )


def decision_of(candidates: tuple[Answer, ...]) -> Decision:
    """Who of them is first, without production, prices and energy."""
    options = []
    for own in candidates:
        machine = SystemSpec.model_construct(name=own.system, power=None)
        rates = Rates(system=machine, devices=own.num_devices, units=1, prices=Prices())
        training = HealthyRun(own.steps, own.step_time_s, 2e10, 16)
        known = {"label": own.label, "system": own.system, "plan": own.label, "time": own.time}
        options.append(Option(**known, training=training, rates=rates, draws=Draws(0, 1000)))
    return decide(options, "EUR")


def of_candidates(result: StudyResult, *candidates: Answer) -> StudyResult:
    """The same study with these candidates, and what is decided of them."""
    candidates = named(candidates)
    decision = decision_of(candidates)
    said = {"verdict": sentence(candidates, decision), "grounds": grounds(candidates, decision, None)}
    return replace(result, candidates=candidates, decision=decision, **said)


def study_result() -> StudyResult:
    """Four candidates with everything a report shows."""
    candidates = named((_gpus(), _wafers(1), _wafers(4), _wafers(16)))
    names = [candidate.label for candidate in candidates]
    kinds = {"column_parallel": 10, "row_parallel": 14}
    covered = SamplingSummary(24, 8112, 0.97, 3.1e-7, 2.4e-6, True, kinds)
    decision = decision_of(candidates)
    return StudyResult(
        study="gpt3_20b",
        title="GPT-3 20B: GPUs or wafers",
        question="Which reaches the target first: 128 A100-80GB with 3D parallelism, "
        "or 1, 4 or 16 CS-2 with weight streaming?",
        model="gpt3_20b",
        num_parameters=2.02e10,
        seq_length=SEQ,
        target_tokens=TARGET_TOKENS,
        law=CRITICAL.law,
        critical_batch_tokens=CRITICAL.tokens,
        critical_batch_band_tokens=CRITICAL.band_tokens,
        candidates=candidates,
        verdict=sentence(candidates, decision),
        decision=decision,
        grounds=grounds(candidates, decision, None),
        assumptions=tuple(Assumption(*row.split(" | ")) for row in ASSUMPTIONS.splitlines()),
        sampling=dict.fromkeys(names, covered),
        accuracy=(
            Accuracy("3d", "megatron_2021", 22, 0.061, 0.143, 0.187, 0.16),
            Accuracy("weight-streaming", "cerebras_gpt", 5, 0.112, 0.231, 0.305, 0.4),
        ),
        inputs_digest="sha256:5f1d8c0e9b7a",
    )


def hostile_result() -> StudyResult:
    """Text that would break out of HTML, SVG or a terminal wherever it is not escaped."""
    evil = '</script><script>window.stolen=1</script><img src=x onerror="window.stolen=1">&amp;\x1b[31m'
    result = study_result()
    first = replace(result.candidates[0], system=evil, notes=(evil,))
    bars = tuple(replace(bar, name=evil, lane=f"{evil}{bar.lane}") for bar in first.timeline[:20])
    first = replace(first, timeline=bars, layout={"tensor": 8, evil: evil})
    return replace(
        result,
        title=evil,
        question=evil,
        verdict=evil,
        model=evil,
        candidates=(first, *result.candidates[1:]),
        assumptions=(Assumption(evil, evil, evil, evil, evil),),
    )


def empty_candidate(result: StudyResult) -> StudyResult:
    """The same study with one candidate that knows nothing but its headline figures."""
    never = replace(result.candidates[1].time, step_time_s=1e308)
    bare = replace(
        result.candidates[1],
        memory=(),
        batch_curve=(),
        timeline=(),
        breakdown_s={},
        utilisation={},
        time=never,
    )
    first, other, *_ = result.decision.outcomes
    outcomes = (first, replace(other, wall_s=Spread(inf, inf, inf)))
    decision = replace(result.decision, outcomes=outcomes, rival=bare.label, break_even=(), levers=())
    return replace(result, candidates=(result.candidates[0], bare), decision=decision)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Every tag of a page with its attributes, in order."""
    parser = _Tags()
    parser.feed(page)
    return parser.tags
