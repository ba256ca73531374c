"""A question about a day is answered with what existed on it, or refused with what did."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfsim as ps
from perfsim.base.dates import existed, months_apart
from perfsim.base.errors import InputError
from perfsim.catalog import Catalog, data_root, default_catalog
from perfsim.prediction.dates import measured_days, newest_part
from perfsim.prediction.question import USUAL, Question, question_of

CATALOG = Catalog([data_root()])
DATED = ("device", "link", "runtime", "calibration", "framework")
MONTHS = st.builds("{}-{:02}".format, st.integers(2000, 2030), st.integers(1, 12))


def asked(system: str, day: str, **more: object) -> Question:
    given = {"model": "gpt3_20b", "system": system, "devices": 16, "recipe": "gpt3_20b_chinchilla"}
    return question_of({**given, "as_of": day, **more})


@pytest.mark.parametrize("kind", DATED)
def test_everything_that_did_not_always_exist_has_a_date(kind: str) -> None:
    assert CATALOG.names(kind)
    undated = [name for name in CATALOG.names(kind) if CATALOG.load(kind, name).date is None]
    assert set(undated) <= {USUAL}


def test_releases_of_the_wafer_are_in_the_order_of_their_days_and_the_measured_ones_among_them() -> None:
    calibration = CATALOG.load("calibration", "wse-2")
    assert list(calibration.releases.values()) == sorted(calibration.releases.values())
    assert set(calibration.measured_releases) <= set(calibration.releases)


@given(date=MONTHS, day=MONTHS)
def test_a_month_existed_on_all_its_days_and_later_and_never_before(date: str, day: str) -> None:
    assert existed(date, day) is (date <= day)
    assert existed(f"{date}-15", date)
    assert existed(date, f"{date}-01")
    assert not existed(f"{date}-15", f"{date}-14")
    assert months_apart(date, day) == months_apart(day, date)
    assert (months_apart(date, day) == 0) is (date == day)


@pytest.mark.parametrize(
    ("day", "runtime", "release"),
    [
        ("2023-03", "megatron_2021", "r1.7"),
        ("2023-04-17", "megatron_2021", "r1.7"),
        ("2023-04-18", "megatron_2021", "r1.8"),
        ("2023-05", "fsdp_2023", "r1.8"),
        ("2024-07", "megatron_core", "r2.3"),
        ("2026-04", "megatron_core", "r2.10"),
    ],
)
def test_each_machine_runs_the_newest_that_existed_on_the_day(day: str, runtime: str, release: str) -> None:
    assert asked("dgx-a100-80gb", day).job.runtime.name == runtime
    assert asked("cs-2", day).job.runtime.software_release == release


def test_the_latest_is_the_newest_that_was_measured_on_the_device() -> None:
    # Megatron-Core is newer, and no published run has it on an A100; nor any log a release after r2.3.
    assert asked("dgx-a100-80gb", "latest").job.runtime.name == "fsdp_2023"
    assert asked("dgx-h100", "latest").job.runtime.name == "megatron_core"
    assert asked("cs-2", "latest").job.runtime.software_release == "r2.3"
    assert measured_days(asked("cs-2", "")) == ("2023-01-13", "2024-07-19")


def test_without_a_day_a_question_is_run_by_what_it_names() -> None:
    question = asked("dgx-a100-80gb", "")
    assert question.ran_by == question.recipe.runtime
    assert asked("cs-2", "").ran_by.software_release is None


@pytest.mark.parametrize(
    ("system", "day", "words", "nearest"),
    [
        ("dgx-h100", "2021-06", "device h100-sxm5-80gb did not exist, it is of 2022-10", "dgx-a100-80gb"),
        ("cs-3", "2023-06", "device wse-3 did not exist, it is of 2024-03", "cs-2"),
        ("cs-2", "2022-06", "software release r1.6 did not exist, it is of 2022-10-10", "a later day"),
        ("cs-2", "2023-13", "'2023-13' is no date", "a month (2023-06)"),
        ("cs-2", "equal", "'equal' is no date", "latest"),
    ],
)
def test_what_did_not_exist_is_refused_with_what_did(system: str, day: str, words: str, nearest: str) -> None:
    with pytest.raises(InputError) as refused:
        asked(system, day)
    assert words in refused.value.problems[0].message
    assert nearest in refused.value.problems[0].help


def test_a_named_runtime_stays_and_is_refused_before_its_time() -> None:
    assert asked("dgx-a100-80gb", "2025-01", runtime="megatron_2021").job.runtime.name == "megatron_2021"
    with pytest.raises(InputError, match="runtime megatron_core did not exist"):
        asked("dgx-a100-80gb", "2023-06", runtime="megatron_core")
    with pytest.raises(InputError, match=r"software release r2\.0 did not exist"):
        asked("cs-2", "2023-06", **{"runtime.software_release": "r2.0"})


def test_a_changed_release_of_a_system_stays() -> None:
    question = asked("cs-2", "2023-06", **{"system.software_release": "r1.7"})
    assert question.job.runtime.software_release is None
    with pytest.raises(InputError, match=r"software release r2\.1 did not exist"):
        asked("cs-2", "2023-06", **{"system.software_release": "r2.1"})


def test_a_device_of_ones_own_without_a_date_cannot_be_asked_about_a_day() -> None:
    system = default_catalog().system("dgx-h100").with_(**{"device.date": None})
    assert asked(system, "").job
    with pytest.raises(InputError, match="has no date") as refused:
        asked(system, "2024-01")
    assert "date: 2023-06" in refused.value.problems[0].help


def test_what_extends_a_description_does_not_inherit_its_date() -> None:
    device = default_catalog().device("h200-sxm5-141gb")
    assert device.date != default_catalog().device("h100-sxm5-80gb").date
    assert default_catalog().load("runtime", "mlperf_bert").line == ""


def test_an_answer_says_what_its_day_chose_and_which_dates_are_from_memory() -> None:
    def said(system: str, day: str, devices: int) -> str:
        answer = ps.predict(model="gpt3_xl", system=system, devices=devices, batch=64, as_of=day)
        return next(caveat.text for caveat in answer.caveats if caveat.code == "as-of")

    sourced = said("cs-2", "2023-06", 1)
    assert sourced.startswith("as of 2023-06: software release r1.8 of 2023-04-18")
    assert "recalled" not in sourced
    recalled = "recalled, without a source: device h100-96gb-hbm2e-500w"
    assert recalled in said("h100-96gb-hbm2e-500w", "2025-01", 8)


def test_the_date_of_a_machine_is_the_date_of_its_newest_part() -> None:
    question = asked("dgx-a100-80gb", "2022-01")
    assert newest_part(question).name == "runtime megatron_2021"
    question = asked("dgx-h100", "2022-12")
    assert newest_part(question).date == "2022-10"
    assert newest_part(replace(question, as_of="2024-02")).name == "runtime megatron_core"
