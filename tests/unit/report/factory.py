"""A study as it is answered, and results that no run gives. Loaded by path from the conftest of the tests."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from math import inf

from perfsim.catalog import default_catalog
from perfsim.convergence.bill import Rates
from perfsim.convergence.uncertain import Draws, Spread
from perfsim.convergence.wall_clock import HealthyRun
from perfsim.report.page import Section
from perfsim.report.study import study_page
from perfsim.specs.hardware import SystemSpec
from perfsim.specs.prices import Prices
from perfsim.studies.answers import Answer, Assumption, Decision, StudyResult, named
from perfsim.studies.decision import Option, decide
from perfsim.studies.loading import study_from
from perfsim.studies.runner import run_study
from perfsim.studies.verdict import grounds, sentence

GIB = 2**30


def sections(result: StudyResult) -> dict[str, Section]:
    """The sections of the page of a study by their ids."""
    return {section.anchor: section for section in study_page(result).sections}


def decision_of(candidates: tuple[Answer, ...]) -> Decision:
    """Who of them is first, without production, prices and energy."""
    options = []
    for own in candidates:
        machine = SystemSpec.model_construct(name=own.system, power=None)
        rates = Rates(system=machine, devices=own.num_devices, units=1, prices=Prices())
        training = HealthyRun(own.steps, own.step_time_s, 2e10, 16)
        names = {"label": own.label, "system": own.system, "device": own.device, "plan": own.label}
        options.append(Option(**names, time=own.time, training=training, rates=rates, draws=Draws(0, 1000)))
    return decide(options, "EUR")


def of_candidates(result: StudyResult, *candidates: Answer) -> StudyResult:
    """The same study with these candidates, and what is decided of them."""
    candidates = named(candidates)
    decision = decision_of(candidates)
    said = {"verdict": sentence(candidates, decision), "grounds": grounds(candidates, decision, None)}
    return replace(result, candidates=candidates, decision=decision, **said)


@cache
def study_result() -> StudyResult:
    """128 A100s with 3D parallelism, and 1, 4 and 16 CS-2, with everything that a report shows."""
    changes = {"as_of": "equal", "batch_sizes": [128, 256, 512, 1024], "sampling": {"tasks": 2}}
    fields = {"extends": "gpt3_20b", **changes}
    return run_study(study_from(fields, default_catalog()))


def hostile_result() -> StudyResult:
    """Text that would break out of HTML, SVG or a terminal wherever it is not escaped."""
    evil = '</script><script>window.stolen=1</script><img src=x onerror="window.stolen=1">&amp;\x1b[31m'
    result = study_result()
    first = replace(result.candidates[0], system=evil, notes=(evil,))
    bars = tuple(replace(bar, name=evil, lane=f"{evil}{bar.lane}") for bar in first.timeline[:20])
    first = replace(first, timeline=bars, layout={"tensor": 8, evil: evil})
    words = dict.fromkeys(("title", "question", "verdict", "model"), evil)
    assumptions = (Assumption(evil, evil, evil, evil, evil),)
    return replace(result, candidates=(first, *result.candidates[1:]), assumptions=assumptions, **words)


def empty_candidate(result: StudyResult) -> StudyResult:
    """The same study with one candidate that knows nothing but its headline figures."""
    never = replace(result.candidates[1].time, step_time_s=1e308)
    empty = {"memory": (), "batch_curve": (), "timeline": (), "breakdown_s": {}, "utilisation": {}}
    bare = replace(result.candidates[1], time=never, **empty)
    first, other, *_ = result.decision.outcomes
    outcomes = (first, replace(other, wall_s=Spread(inf, inf, inf)))
    decision = replace(result.decision, outcomes=outcomes, rival=bare.label, break_even=(), levers=())
    known = {"decision": decision, "eras": None, "laws": ()}
    return replace(result, candidates=(result.candidates[0], bare), **known)


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
