"""Months and days by which something existed: one type, one way to compare."""

import re

from perfsim.base.errors import InputError

PATTERN = r"^(19|20)[0-9]{2}-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?$"
"""A month (`2023-06`), or a day (`2023-06-15`); as a day that is asked about, a month means its end."""
LATEST = "latest"
"""Asks for the newest that was measured."""
EQUAL = "equal"
"""Asks for one day for all candidates of a study: the earliest of their newest measured dates."""


def existed(date: str, day: str) -> bool:
    """Whether something of this date existed on a day; a month counts from its first day to its last."""
    return date[: len(day)] <= day


def months_apart(first: str, second: str) -> int:
    """Calendar months between two dates."""
    ends = [int(date[:4]) * 12 + int(date[5:7]) for date in (first, second)]
    return abs(ends[1] - ends[0])


def days_of(date: str) -> float:
    """Days of a date since the year 0, in mean years and months; a month counts from its first day."""
    year, month, day = (*map(int, date.split("-")), 1)[:3]
    return 365.25 * (year + (month - 1) / 12) + day


def check_day(text: str, *words: str) -> str:
    """A date, or one of some words; InputError for all else."""
    if text in words or re.match(PATTERN, text):
        return text
    allowed = " or ".join(("a month (2023-06), a day (2023-06-15)", *words))
    raise InputError(f"{text!r} is no date", f"write {allowed}")
