"""Finished points on disk: what was asked, as a digest, and what was answered, as JSON text.

One SQLite file for a sweep. A point is stored as soon as it is answered and found again under the
digest of everything that decides its answer, so a sweep that was stopped goes on where it was, and
a changed input is a new question.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from perfsim.errors import PerfsimError
from perfsim.prediction.accuracy import recorded
from perfsim.studies.spec import StudySpec
from perfsim.version import __version__

SCHEMA = 1
"""Kept in the file's `user_version`; another number is another layout of the table."""
WAIT_S = 30.0
"""How long to wait for another process that writes."""

_PROSE = frozenset({"title", "question", "description", "sources", "assumed", "fit"})
"""What explains a value and decides nothing."""
_ASKED = ("model", "recipe", "convergence", "batch_sizes", "candidates")
_PRESENTATION = frozenset({"report", "api", "cli", "__main__.py"})


class StoreError(PerfsimError):
    """The file of finished points cannot be used."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An answer as JSON text, and the seconds that it took to compute."""

    text: str
    seconds: float


class Store:
    """The table of finished points in one file; a context manager that closes it.

    Several processes may use one file at the same time. Raises StoreError for a file that is no
    store, that cannot be written, or that another process holds for too long.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with _explained(self.path):
            self._connection.execute("PRAGMA journal_mode = WAL")
            (found,) = self._connection.execute("PRAGMA user_version").fetchone()
            if found not in (0, SCHEMA):
                raise StoreError(
                    f"{self.path} was written by another release of perfsim; delete it, or give another --out"
                )
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS points "
                "(digest TEXT PRIMARY KEY, answer TEXT NOT NULL, seconds REAL NOT NULL) WITHOUT ROWID"
            )
            self._connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def put(self, digest: str, answer: Stored) -> None:
        """Keep an answer; it is on disk when this returns."""
        with _explained(self.path):
            self._connection.execute(
                "INSERT OR REPLACE INTO points VALUES (?, ?, ?)", (digest, answer.text, answer.seconds)
            )

    def find(self, digests: Iterable[str]) -> dict[str, Stored]:
        """The answers that are there, by digest."""
        found = {}
        with _explained(self.path):
            for digest in dict.fromkeys(digests):
                row = self._connection.execute(
                    "SELECT answer, seconds FROM points WHERE digest = ?", (digest,)
                ).fetchone()
                if row is not None:
                    found[digest] = Stored(*row)
        return found


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """SQLite's refusals and the file system's, in words that help."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreError(f"{path}: cannot be used to keep finished points: {error}") from None
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: is not a store of finished points ({error}); delete it") from None


def digest_of(study: StudySpec) -> str:
    """SHA-256 of all that decides the answer to a study, in 64 hexadecimal digits.

    These are the resolved descriptions (hardware, calibrations, model, recipe, candidates, batches,
    law), without names of files, titles, sources and reasons; and the version of the model.
    """
    inputs = {name: _decisive(study.model_dump(mode="json", include={name})[name]) for name in _ASKED}
    document = {"inputs": inputs, "model_version": model_version()}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode("utf-8")).hexdigest()


def _decisive(value: Any) -> Any:
    """A description without its prose."""
    if isinstance(value, Mapping):
        return {key: _decisive(item) for key, item in value.items() if key not in _PROSE}
    if isinstance(value, list):
        return [_decisive(item) for item in value]
    return value


@cache
def model_version() -> str:
    """The version of the model: perfsim's, its computing modules', and the recorded errors that set bands.

    The modules count because a correction must not leave an old answer in a store.
    """
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in _PRESENTATION and name.parts[0] != "_data":
            digest.update(name.as_posix().encode("utf-8") + b"\0" + path.read_bytes() + b"\0")
    digest.update(json.dumps(recorded(), sort_keys=True).encode("utf-8"))
    return f"{__version__}+{digest.hexdigest()[:16]}"
