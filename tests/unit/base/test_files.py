import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfsim.base.errors import PerfsimError
from perfsim.base.files import check_file, check_folder, write_file


def test_a_file_is_written_with_its_folders_and_nothing_next_to_it(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a" / "b.txt", "x µ\n")
    assert path.read_bytes() == "x µ\n".encode()
    assert [entry.name for entry in path.parent.iterdir()] == ["b.txt"]


def test_a_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", "old")

    def parts() -> Iterator[str]:
        yield "n"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_file(path, parts())
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_symbolic_link_stays_one_and_the_mode_of_a_file_is_kept(tmp_path: Path) -> None:
    target = write_file(tmp_path / "target", "old")
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    write_file(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, "through")
    reader.join()
    assert got == [b"through"]
    assert pipe.is_fifo()
    assert write_file(Path(os.devnull), "gone").is_char_device()


def test_an_output_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    file = write_file(tmp_path / "file", "")
    with pytest.raises(PerfsimError, match=r"--out .*file/deep/er: .*file is no folder"):
        check_folder(file / "deep" / "er")
    with pytest.raises(PerfsimError, match=r"--trace .*: is a folder; the name of a file is expected"):
        check_file(tmp_path, "--trace")
    with pytest.raises(PerfsimError, match="is no folder"):
        check_file(file / "x.yaml")
    with pytest.raises(PerfsimError, match=r"--out /proc/x: nothing can be written into /"):
        check_folder(Path("/proc/x"))  # where root may write by its permissions
    check_folder(tmp_path / "new" / "folder")
    check_file(tmp_path / "new" / "file")
    check_file(Path(os.devnull))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
