"""Perturbations as the command line and a study write them."""

from __future__ import annotations

import pytest

from perfsim.base.errors import InputError
from perfsim.specs.perturbations import PerturbationSpec, parse_perturbations


def test_a_line_says_what_yaml_says() -> None:
    text = "straggler=1.3@rank5,straggler=2@7,jitter=0.02,seed=1,slow=0.5@leaf0-spine3,dead=node0/nic0-leaf0"
    given = {
        "stragglers": [{"rank": 5, "factor": 1.3}, {"rank": 7, "factor": 2.0}],
        "jitter": 0.02,
        "seed": 1,
        "links": [{"link": "leaf0-spine3", "left": 0.5}, {"link": "node0/nic0-leaf0", "left": 0.0}],
    }
    assert parse_perturbations(text) == PerturbationSpec.model_validate(given)
    named = [parse_perturbations(f"straggler=2@{rank}") for rank in ("gpu3", "cs3", "3")]
    assert named[0] == named[1] == named[2], "by rank or by device"
    failure = parse_perturbations("mttf=8h,checkpoint=30min,restart=10min,steps=500").failure
    assert failure is not None
    assert (failure.mttf, failure.checkpoint, failure.restart, failure.steps) == (28800.0, 1800.0, 600.0, 500)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stragler=1.3@5", "did you mean `straggler`"),
        ("straggler=1.3", "write for example straggler=1.3@rank5"),
        ("straggler=0.5@1", "greater than or equal to 1"),
        ("jitter=lots", "'lots' is not a number"),
        ("jitter=3", "less than or equal to 1"),
        ("mttf=8,checkpoint=1h,restart=1h", "8 has no unit.*\n.*did you mean '8 h'"),
        ("straggler=x", "a whole number is missing"),
        ("mttf=8h", "failure.checkpoint is missing"),
        ("mttf=8h,at=2h,checkpoint=1h,restart=1h", "failures need either"),
        ("mttf=0s,checkpoint=1h,restart=1h", "too small: 1 us to"),
        ("seed=-1", "greater than or equal to 0"),
        ("jitter=0.02,jitter=0.3", "jitter is given twice"),
        ("step-straggler=2@0.1,seed=1,step-straggler=2@0.2", "step-straggler is given twice"),
        ("mttf=8h,mttf=9h,checkpoint=1h,restart=1h", "mttf is given twice"),
        ("slow=0.5@leaf0-spine3,dead=spine3-leaf0", "link spine3-leaf0 is given twice"),
        ("foo=1,bar=2", "(?s)foo.*bar"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_perturbations(text)
