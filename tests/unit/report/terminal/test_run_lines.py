"""One predicted step on a terminal."""

from __future__ import annotations

from dataclasses import replace

from perfsim.costs.wafer import StreamingRoof
from perfsim.report.terminal import run_lines
from perfsim.studies.answers import StudyResult

METRICS = """\
gpt3_20b on 128 A100-80GB (16 DGX), 3d
batch         768 sequences
layout        tp8 pp4 dp4 mbs1, sequence parallel, recompute selective, schedule 1f1b
step          10.2 s
tokens/s      154,202
MFU / HFU     48.1 % / 50.7 % of peak
bubble        7.0 % of the step
exposed comm  15.5 % of the step
peak memory   33.7 GiB per device
why           Bound by compute.

where the step goes         s   share
-------------------------------------
compute                  7.24  71.0 %
tensor communication     1.22  12.0 %
bubble                  0.714   7.0 %
recompute               0.510   5.0 %
data communication      0.255   2.5 %
optimizer               0.153   1.5 %
pipeline communication  0.102   1.0 %"""


def test_every_metric_is_shown_and_the_parts_of_the_step_longest_first(result: StudyResult) -> None:
    first = result.candidates[0]
    idle = replace(first, breakdown_s={**first.breakdown_s, "input": 0.0})
    assert "\n".join(run_lines(idle)) == METRICS, "a part that takes no time is left out"


def test_a_streamed_step_says_why_its_two_accounts_differ(result: StudyResult) -> None:
    wafer = result.candidates[1]
    streaming = replace(wafer.why, streaming_roof=StreamingRoof(1.0, 2.0, 2.0))
    lines = run_lines(replace(wafer, why=streaming))
    assert "'why' counts the wait between two steps as the update" in lines[-1]
    assert any(line.startswith("idle ") for line in lines)
