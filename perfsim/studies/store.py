"""Finished points on disk: a digest of the inputs, and the answer as JSON text, in one SQLite file per sweep.

A point is stored as soon as it is answered, under the digest of everything that affects its answer. An
interrupted sweep continues from there, and a changed input has a new digest. Each row has a checksum over
its digest and its answer, since SQLite notices damage to its own structure only.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perfsim.base.errors import PerfsimError

SCHEMA = 2
"""Version of the table's columns, kept in the file's `user_version`."""
WAIT_S = 30.0
"""How long to wait while another process writes."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An answer as JSON text, and the seconds it took to compute."""

    text: str
    seconds: float


class Store:
    """The table of finished points in one file; a context manager that closes it.

    Several processes may use one file at the same time; one on read-only media can be read. PerfsimError for
    a file that is no store or that another process locks for too long, and where none can be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: set[str] = set()
        """Digests whose rows do not have their checksum; `find` fills it."""
        self.readonly = path.is_file() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        with _explained(path):
            if self.readonly:
                address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
                self._connection = sqlite3.connect(address, uri=True, isolation_level=None)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
        self._connection.text_factory = bytes  # damaged text may be no UTF-8
        try:
            with _explained(path):
                (schema,) = self._connection.execute("PRAGMA user_version").fetchone()
                if schema not in (0, SCHEMA):
                    raise PerfsimError(
                        f"{path} was written by another release of perfsim; delete it, or give another --out"
                    )
                if not self.readonly:
                    self._connection.execute("PRAGMA journal_mode = WAL")
                    self._connection.execute("PRAGMA synchronous = NORMAL")
                    self._connection.execute(
                        "CREATE TABLE IF NOT EXISTS points (digest TEXT PRIMARY KEY, answer TEXT NOT NULL, "
                        "seconds REAL NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID"
                    )
                    self._connection.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def put(self, digest: str, answer: Stored) -> None:
        """Store an answer; the end of this process leaves it there, a failure of power may not."""
        with _explained(self.path):
            row = (digest, answer.text, answer.seconds)
            self._connection.execute("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?)", (*row, _sum(*row)))

    def find(self, digests: Iterable[str]) -> Iterator[tuple[str, Stored]]:
        """The intact answers among these digests, one at a time: all together may need much memory."""
        with _explained(self.path):
            for digest in dict.fromkeys(digests):
                row = self._connection.execute(
                    "SELECT answer, seconds, checksum FROM points WHERE digest = ?", (digest,)
                ).fetchone()
                if row is None:
                    continue
                text, seconds, checksum = row
                try:
                    answer = Stored(bytes(text).decode("utf-8"), seconds)
                    intact = _sum(digest, answer.text, seconds).encode() == checksum
                except (TypeError, UnicodeDecodeError):
                    intact = False
                if intact:
                    yield digest, answer
                else:
                    self.damaged.add(digest)


def _sum(digest: str, text: str, seconds: float) -> str:
    return hashlib.sha256(f"{digest} {seconds!r} {text}".encode()).hexdigest()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and the file system into PerfsimError."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        why = getattr(error, "strerror", error)
        raise PerfsimError(f"{path}: cannot be used to keep finished points: {why}") from None
    except sqlite3.DatabaseError as error:
        raise PerfsimError(f"{path}: is not a store of finished points ({error}); delete it") from None
