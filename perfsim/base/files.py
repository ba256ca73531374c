"""Files that are written whole or not at all, and paths that are checked before anything is computed."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from perfsim.base.errors import InputError, PerfsimError, Problem

_NUMBERS = count()


def write_file(path: Path, content: str | bytes | Iterable[str]) -> Path:
    """Write a file at once, text (also in parts) as UTF-8, with its folder. Raises OSError."""
    if isinstance(content, bytes):
        parts: Iterable[bytes] = [content]
    else:
        parts = (part.encode("utf-8") for part in ([content] if isinstance(content, str) else content))
    target = path.resolve() if path.is_symlink() else path  # a link stays one
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and not target.is_file():  # a device or a pipe
        _write_parts(target, parts)
        return path
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    # By a rename at the end, so that an interruption leaves the old content.
    partial = target.parent / f".perfsim-{os.getpid()}-{next(_NUMBERS)}.partial"
    try:
        _write_parts(partial, parts)
        if target.exists():
            partial.chmod(stat.S_IMODE(target.stat().st_mode))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _write_parts(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Turns what the file system refuses into a PerfsimError that names the path."""
    try:
        yield Path(path)
    except OSError as error:
        raise PerfsimError(f"{path}: {error.strerror or error}") from None


def must_exist(path: Path) -> None:
    """Raise InputError unless this is a file."""
    if not path.is_file():
        other = "is a directory" if path.is_dir() else "is no regular file"
        said = f"{other}; a file is expected" if path.exists() else "there is no such file"
        raise InputError([Problem(said, file=str(path))])


def check_folder(path: Path, option: str = "--out") -> None:
    """Raise InputError unless files can be written into this folder, which need not exist yet."""
    nearest = next(place for place in (path, *path.parents, Path()) if place.exists() or place.is_symlink())
    if not nearest.is_dir():
        raise _refused(option, path, f"{nearest} is no folder")
    probe = nearest / f".perfsim-{os.getpid()}-{next(_NUMBERS)}"
    try:  # permissions alone do not tell: not even root can write into /proc
        probe.mkdir()
        probe.rmdir()
    except OSError:
        raise _refused(option, path, f"nothing can be written into {nearest}") from None


def check_file(path: Path, option: str = "--out") -> None:
    """Raise InputError unless this file can be written; its folder need not exist yet."""
    if path.is_dir():
        raise _refused(option, path, "is a folder; the name of a file is expected")
    if path.exists() and not os.access(path, os.W_OK):
        raise _refused(option, path, "cannot be written to")
    if not path.exists() or path.is_file():
        check_folder(path.resolve().parent if path.is_symlink() else path.parent, option)


def must_be_ours(path: Path, option: str, *begins: bytes) -> None:
    """Raise InputError where a file would be replaced that begins otherwise than the files of this writer."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(max(map(len, begins)))
    if start and not start.startswith(begins):
        raise InputError(f"{option} {path}: another file is there; name a new one, or give --force")


def _refused(option: str, path: Path, reason: str) -> InputError:
    return InputError(f"{option} {path}: {reason}; give a path that can be written to")
