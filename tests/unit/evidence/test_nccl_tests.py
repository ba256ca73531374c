"""Outputs of nccl-tests are read in the form of any release, and refused where they are of something else.

The samples have the columns of nccl-tests (`src/util.cu` of its repository) and times of perfsim's own lines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perfsim.base.errors import InputError
from perfsim.evidence.collective_fit import read_collective_tables

OLD = """\
# nThread 1 nGpus 4 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid  14 on     node-1 device  0 [0x07] A100-SXM4-40GB
#   Rank  1 Pid  14 on     node-1 device  1 [0x0b] A100-SXM4-40GB
#
#                                             out-of-place                       in-place
#       size         count    type      time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)              (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0   float     8.11    0.00    0.00  0e+00     8.00    0.00    0.00  0e+00
          32             4   float     9.27    0.00    0.00  0e+00     9.10    0.00    0.00    N/A
          64             8   float    1.2e+06    0.01    0.01  0e+00     9.41    0.01    0.01  0e+00
# Out of bounds values : 0 OK
"""


def test_the_out_of_place_times_of_a_new_release_are_read(repository: Path) -> None:
    samples = repository / "tests" / "samples" / "nccl"
    tables = read_collective_tables([samples / "all_reduce.txt", samples / "all_gather.txt"])
    assert set(tables) == {"all_reduce", "all_gather"}
    rows = tables["all_reduce"]
    assert rows.size.tolist() == [8.0] * 19
    assert (rows.n_bytes[0], rows.n_bytes[-1]) == (8192, 2**31)
    assert rows.time_s[0] == pytest.approx(18.34e-6)


def test_an_old_release_without_columns_of_the_operation_is_read_by_its_header(tmp_path: Path) -> None:
    (tmp_path / "my_all_gather_2.txt").write_text(OLD)
    ((operation, rows),) = read_collective_tables([tmp_path / "my_all_gather_2.txt"]).items()
    assert operation == "all_gather"
    assert rows.size.tolist() == [2.0, 2.0]
    assert rows.n_bytes.tolist() == [32.0, 64.0]
    assert rows.time_s.tolist() == pytest.approx([9.27e-6, 1.2])


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("out.txt", "", "", r"does not name its operation\n    help: name the file after it"),
        ("all_gather.txt", "1 Pid  14 on     node-1", "1 Pid  14 on     node-2", "measured over 2 nodes"),
        ("all_gather.txt", "Rank", "rang", "names no ranks"),
        ("all_gather.txt", "9.27", "oops", r"all_gather\.txt:11: time must be a positive number, not 'oops'"),
    ],
)
def test_an_output_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, before: str, after: str, message: str
) -> None:
    (tmp_path / name).write_text(OLD.replace(before, after) if before else OLD)
    with pytest.raises(InputError, match=message):
        read_collective_tables([tmp_path / name])


def test_groups_of_ranks_are_refused(repository: Path, tmp_path: Path) -> None:
    text = (repository / "tests/samples/nccl/all_reduce.txt").read_text()
    (tmp_path / "split.txt").write_text(text.replace("Rank  7 Group  0", "Rank  7 Group  1"))
    with pytest.raises(InputError, match="several groups of ranks"):
        read_collective_tables([tmp_path / "split.txt"])
