"""The planner's picks next to the best layouts of a wide search: how much slower its picks are.

The wide search takes from the planner only the list of layouts and the order of their estimates. It tries
every layout within the memory limit whose estimate, less `MARGIN`, is below the best step so far, and a
random sample of the others. The longest path of a graph is a lower bound of its step, so only layouts whose
path is shorter than the best step are simulated.

Eight questions run with the slow tests; with PERFSIM_REGRET=FILE (`make regret`) all, and FILE gets a table.
"""

import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from perfsim.machines.placement import place
from perfsim.prediction.planner import Search, confirmed
from perfsim.prediction.question import Question, question_of
from perfsim.prediction.run import Step, evaluate
from perfsim.specs.layout import text_of

pytestmark = pytest.mark.slow

MARGIN = 0.10
"""By how much the closed form may exceed a simulated step in the wide search."""
SAMPLED = 40
"""Layouts drawn from those outside the margin."""
MOST_PASSES = 20_000
"""Passes of a micro-batch through a layer in a graph that the wide search writes; larger graphs are left."""

MEASURED = "\n## Measured regret\n"
"""Where the tables of `test_measured.py` begin, which stand behind."""
FEW = 8
SEED = 10
BUDGET_S = 12.0
"""Processor seconds of the wide search on one question."""
QUESTIONS = """
3d    llama_7b      dgx-a100-40gb  8:32 16:48 64:128
3d    llama_7b      dgx-h100       8:64 128:384 512:512
3d    gpt3_6p7b     dgx-a100-80gb  8:24 32:192 256:256
3d    gptj_6b       dgx-a100-40gb  16:64 48:96 128:192
3d    gptj_6b       dgx-h100       24:48 96:384
3d    llama_13b     dgx-a100-80gb  16:32 64:64 256:768
3d    llama_13b     dgx-a100-40gb  16:96 40:64 128:256
3d    gpt3_13b      dgx-a100-80gb  16:32 128:96 320:512
3d    gpt3_13b      dgx-h100       32:128 160:96 512:768
3d    gpt3_20b      dgx-a100-80gb  32:96 256:64 384:768
3d    gpt3_20b      dgx-a100-40gb  64:96 192:256 512:384
3d    gpt_neox_20b  dgx-a100-40gb  96:192 128:128 256:1024
3d    gpt_neox_20b  dgx-h100       48:96 64:256
3d    llama_33b     dgx-a100-80gb  48:48 64:96 384:384
3d    llama_33b     dgx-h100       32:64 256:192
3d    llama_65b     dgx-a100-80gb  128:96 256:128 512:512
3d    llama_65b     dgx-h100       64:64 1024:768
3d    llama2_70b    dgx-h100       64:192 128:64 640:512
3d    llama2_70b    dgx-a100-80gb  96:96 320:256 1024:1024
3d    gpt3_175b     dgx-a100-80gb  256:96 512:192 1024:384
3d    gpt3_175b     dgx-h100       128:64 384:192 1024:768
3d    opt_175b      dgx-a100-80gb  384:128 768:384
3d    opt_175b      dgx-a100-40gb  512:128 1024:512
data  llama_7b      dgx-a100-80gb  8:32 64:192
zero3 llama_13b     dgx-a100-80gb  16:32 128:384
zero3 llama2_70b    dgx-h100       64:192
pipeline gpt3_6p7b  dgx-a100-80gb  8:64 16:96
tensor llama_7b     dgx-h100       8:32
"""
"""Strategy, model, system, and pairs of devices and batch; they train as GPT-3 did."""
OF_TODAY = """
3d    llama31_8b    dgx-h100       8:64 24:96 64:128 128:512 216:250 512:1024
3d    llama31_8b    dgx-h100       16:16@32768 64:32@32768 64:16@131072 256:64@131072
3d    llama31_8b    mi300x-192gb     8:64 40:80 64:128 64:32@32768 256:512
3d    llama31_8b    gb200-nvl72    72:144 144:288 36:72@32768 288:288
3d    llama31_8b    b200-sxm-180gb 8:64 64:256 120:240
3d    llama31_70b   dgx-h100       64:128 128:128 216:432 256:128@32768 512:1024
3d    llama31_70b   mi300x-192gb     16:64 64:128 192:384
3d    llama31_70b   gb200-nvl72    72:144 144:432 216:216 72:36@32768
3d    llama31_70b   b200-sxm-180gb 64:128 96:192
3d    llama31_405b  dgx-h100       512:512 1024:1024
3d    gpt3_175b     dgx-h100       216:250 320:500
3d    gpt3_20b      dgx-h100       56:112 104:104 136:272
3d    mixtral_8x7b  dgx-h100       16:64 64:256 128:512 200:400 256:1024
3d    mixtral_8x7b  dgx-a100-80gb  64:256 128:256
3d    mixtral_8x7b  mi300x-192gb     32:128 64:256
3d    mixtral_8x7b  gb200-nvl72    72:288
3d    mixtral_8x22b dgx-h100       128:256 256:512
3d    qwen3_30b_a3b dgx-h100       16:256 64:512 128:1024
3d    qwen3_30b_a3b gb200-nvl72    72:288
3d    qwen3_30b_a3b b200-sxm-180gb 8:128 64:512
3d    gpt_oss_120b  dgx-h100       64:256 128:512
3d    gpt_oss_120b  b200-sxm-180gb 64:512
3d    deepseek_v3   dgx-h100       512:1024
3d    deepseek_v3   gb200-nvl72    288:576
3d    qwen25_32b    dgx-h100       32:128 64:192 128:512
3d    qwen3_14b     h200-sxm5-141gb 16:64 64:128 96:288
3d    gemma2_27b    dgx-h100       32:64 128:256
3d    qwen3_235b_a22b dgx-h100     256:1024
3d    glm45_air     dgx-h100       128:512
zero3 llama31_8b    dgx-h100       64:128 96:192
zero3 llama31_70b   dgx-h100       128:256
"""
"""The same with today's recipe, and the sequence where it is another than the recipe's."""


class Case(NamedTuple):
    """One question in words."""

    strategy: str
    model: str
    system: str
    devices: int
    batch: int
    sequence: str = ""
    """Tokens; empty: the recipe's."""
    recipe: str = ""
    """Empty: the model's usual one."""

    def __str__(self) -> str:
        strategy = "" if self.strategy == "3d" else f" {self.strategy}"
        sequence = self.sequence and f" of {int(self.sequence):,} tokens"
        return f"{self.model}{strategy}, {self.devices:,} x {self.system}, batch {self.batch:,}{sequence}"

    def question(self) -> Question:
        given = {**self._asdict(), "rank": "fastest", "runs_on": "any"}
        sequence = given.pop("sequence")
        return question_of(given | ({"recipe.seq_length": int(sequence)} if sequence else {}))


def cases_of(table: str, recipe: str) -> list[Case]:
    """The questions of a table, one for each pair."""
    rows = map(str.split, table.strip().splitlines())
    pairs = [(row, *pair.partition("@")[::2]) for (*row,) in rows for pair in row[3:]]
    return [Case(*row[:3], *map(int, pair.split(":")), length, recipe) for row, pair, length in pairs]


CASES = [*cases_of(QUESTIONS, "gpt3_pretraining"), *cases_of(OF_TODAY, "")]


@dataclass
class Regret:
    """The planner's pick next to the best layout of the wide search."""

    screened: int
    feasible: int
    """Layouts within the memory limit."""
    pick: str
    pick_s: float
    """Simulated step of the planner's pick."""
    best: str
    best_s: float
    """Simulated step of the fastest layout that either search has simulated."""
    confirmed: int
    """Layouts that the planner simulated."""
    left: int = 0
    """Layouts within the margin that the budget or the size of their graphs left out."""
    errors: list[float] = field(default_factory=list)
    """Estimate over longest path less 1, of every layout of the wide search."""

    @property
    def regret(self) -> float:
        """How much slower the pick is, as a share of the best step."""
        return self.pick_s / self.best_s - 1


def regret_of(case: Case) -> Regret:
    """The planner's answer next to that of the wide search. PlanError where no layout fits."""
    searched = Search(case.question())
    searched.ratio[:] = 1.0  # against the simulation alone
    runs = [*confirmed(searched)]
    pick = text_of(runs[-1].plan.layout)
    pick_s = runs[-1].step_time_s
    screened = searched.screening.screened
    answer = Regret(screened, len(searched.order), pick, pick_s, pick, pick_s, len(runs))
    search_widely(searched, answer)
    return answer


def search_widely(searched: Search, answer: Regret) -> None:
    """Try layouts in the order of their estimates as far as they could be best, then the sample."""
    order = searched.order
    least_s = searched.screening.estimate_s[order] * (1 - MARGIN)
    began_s = time.process_time()
    position = 0
    while position < len(order) and least_s[position] < answer.best_s:
        if time.process_time() - began_s > BUDGET_S:
            answer.left += int((least_s[position:] < answer.best_s).sum())
            break
        answer.left += not is_tried(searched, int(order[position]), answer)
        position += 1
    rest = order[position:]
    for index in np.random.default_rng(SEED).choice(rest, min(SAMPLED, len(rest)), replace=False).tolist():
        is_tried(searched, index, answer)


def is_tried(searched: Search, index: int, answer: Regret) -> bool:
    """Whether the graph of a layout is small enough; if it is, its path and where needed its step."""
    question = searched.question
    plan = question.chosen.plan(question.job, question.topology, searched.screening.layout(index))
    if plan.num_microbatches * question.model.num_layers > MOST_PASSES:
        return False
    graph = plan.graph()
    placed = place(graph, question.topology, contention=False)
    path_s = Step(placed, question.costs).run(contention=False).step_time_s
    answer.errors.append(float(searched.screening.estimate_s[index]) / path_s - 1)
    if path_s < answer.best_s:
        step_s = evaluate(plan, question.costs, graph=graph).step_time_s
        if step_s < answer.best_s:
            answer.best = text_of(plan.layout)
            answer.best_s = step_s
    return True


def test_the_pick_is_the_best_of_a_wide_search_or_nearly() -> None:
    target = os.environ.get("PERFSIM_REGRET")
    cases = CASES if target else random.Random(SEED).sample(CASES, FEW)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as workers:
        answers = list(workers.map(regret_of, cases))
    if target:
        file = Path(target)
        _, heading, measured = (file.read_text("utf-8") if file.exists() else "").partition(MEASURED)
        file.write_text(page(cases, answers) + heading + measured, encoding="utf-8")
    regrets = np.array([answer.regret for answer in answers])
    assert np.median(regrets) <= 0.005
    worst = int(regrets.argmax())
    assert regrets[worst] <= 0.02, f"{cases[worst]}: {answers[worst].pick}, not {answers[worst].best}"
    errors = np.concatenate([answer.errors for answer in answers])
    assert np.median(np.abs(errors)) <= 0.013, "of joined passes the closed form leaves chains of turns out"


HEAD = """# Regret of the planner

Made by `make regret`. For every question the planner's pick, simulated, is compared with the best layout of
a wide search (`tests/regret/test_regret.py`). It writes the graph of every layout within the memory limit
whose estimate, less {margin:.0%}, is below the best step so far, and of {sampled} drawn from the others. It
simulates those whose longest path (a lower bound) is below it. Graphs above {passes:,} passes of a
micro-batch through a layer are left out, and a question ends after {budget:.0f} s of processor time; *left*
counts what these two left out. Regret is how much slower the pick is than the best layout of both searches.

- {count} questions: median regret {median:.2%}, worst {worst:.2%}; {zero} picks are the best found.
- {written:,} layouts written; {left:,} within the margin are left out.
- Closed form against the longest path of these layouts: median error {error:.2%}; 90 % are between {low:+.1%}
  and {high:+.1%}, all between {least:+.1%} and {most:+.1%}.

| question | screened | within memory | pick, simulated | best found | regret | confirmed | written | left |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
"""


def page(cases: list[Case], answers: list[Regret]) -> str:
    """The report, worst regret first."""
    regrets = np.array([answer.regret for answer in answers])
    errors = np.concatenate([answer.errors for answer in answers])
    low, high = np.quantile(errors, (0.05, 0.95))
    head = HEAD.format(
        margin=MARGIN,
        sampled=SAMPLED,
        passes=MOST_PASSES,
        budget=BUDGET_S,
        count=len(cases),
        median=np.median(regrets),
        worst=regrets.max(),
        zero=int((regrets == 0).sum()),
        written=len(errors),
        left=sum(answer.left for answer in answers),
        error=np.median(np.abs(errors)),
        low=low,
        high=high,
        least=errors.min(),
        most=errors.max(),
    )
    rows = sorted(zip(cases, answers, strict=True), key=lambda row: (-row[1].regret, str(row[0])))
    for case, row in rows:
        best = f"{row.best_s:.4g} s: {row.best}" if row.regret > 0 else "the pick"
        counts = f"{row.confirmed} | {len(row.errors):,} | {row.left:,}"
        pick = f"{row.screened:,} | {row.feasible:,} | {row.pick_s:.4g} s: {row.pick}"
        head += f"| {case} | {pick} | {best} | {row.regret:.2%} | {counts} |\n"
    return head
