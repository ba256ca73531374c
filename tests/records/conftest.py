"""Answers of today, written down: a change that moves one is a defect, or is told in CHANGELOG.md.

`PERFSIM_RECORD=1 python -m pytest -q tests/records` writes the answers anew.
"""

import base64
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ANSWERS = Path(__file__).parent / "answers"
SHOWN = 12
"""Differences that a failing test prints."""
DRAWN = 30_000
"""Characters of a figure that is written down; of others the table of the page has the values."""


def _differences(before: Any, now: Any, relative: float, at: str = "") -> Iterator[str]:
    """Each value that differs, with its place; numbers that are equal to the relative tolerance are equal."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            if key in before and key in now:
                yield from _differences(before[key], now[key], relative, f"{at}.{key}")
            else:
                yield f"{at}.{key}: {'no longer there' if key in before else 'new'}"
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, relative, f"{at}[{index}]")
    elif isinstance(before, float) or isinstance(now, float):
        numbers = isinstance(before, (int, float)) and isinstance(now, (int, float))
        if not numbers or not math.isclose(before, now, rel_tol=relative, abs_tol=1e-15):
            yield f"{at}: {before!r} became {now!r}"
    elif before != now or type(before) is not type(now):
        yield f"{at}: {before!r} became {now!r}"


@pytest.fixture(scope="session")
def inputs() -> dict[str, Any]:
    """What the records ask about, by subject."""
    return yaml.safe_load(Path(__file__).with_name("inputs.yaml").read_text("utf-8"))


@pytest.fixture(scope="session")
def recorded() -> Callable[..., None]:
    """Compares an answer (what JSON can hold) with the one that was written down under a name."""

    def compare(name: str, answer: Any, relative: float = 1e-9) -> None:
        path = ANSWERS / f"{name}.json"
        text = json.dumps(answer, indent=1, sort_keys=True, allow_nan=False)
        if os.environ.get("PERFSIM_RECORD"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8")
        before = json.loads(path.read_text(encoding="utf-8"))
        differences = list(_differences(before, json.loads(text), relative))
        assert not differences, "\n".join([f"{len(differences)} values moved", *differences[:SHOWN]])

    return compare


@pytest.fixture(scope="session")
def shown() -> Callable[[Path], dict[str, Any]]:
    """The body of a page line by line, without its script, version and command, and its figures."""

    def read(page: Path) -> dict[str, Any]:
        body = page.read_text("utf-8").partition("<body>")[2]
        packed = dict(re.findall(r'data-figure="([^"]*)">([^<]*)<', body))
        figures = {name: zlib.decompress(base64.b64decode(text)).decode() for name, text in packed.items()}
        known = {name: json.loads(text)["figure"] for name, text in figures.items() if len(text) < DRAWN}
        lines = re.sub(r"(?s)<script.*?</script>|<footer>.*", "", body).splitlines()
        return {"page": lines, "figures": known}

    return read
