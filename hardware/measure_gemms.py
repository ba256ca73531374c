"""Times bf16 matrix products on a GPU with PyTorch, as a table that `perfsim calibrate gemm` reads.

    python measure_gemms.py > gemms.csv

It needs PyTorch and one free GPU (CUDA or ROCm), and takes about two minutes. Shapes are those of training:
tokens by hidden size by hidden size, and small ones that tell the cost of a launch.
"""

import csv
import itertools
import statistics
import sys

TOKENS = (128, 512, 2048, 8192, 32768)
WIDTHS = (512, 1024, 2048, 4096, 8192, 16384)
MOST_NUMBERS = 2**30
"""Of one matrix; larger shapes are left out, so that 16 GB of memory are enough."""
COLUMNS = ("m", "n", "k", "time_us")
REPEATS, RUNS = 5, 10


def shapes():
    """The products (m, n, k) that are timed: an m x k matrix by a k x n one."""
    for m, n, k in itertools.product(TOKENS, WIDTHS, WIDTHS):
        if max(m * k, k * n, m * n) <= MOST_NUMBERS:
            yield m, n, k


def write(rows, stream):
    """Write rows of m, n, k and microseconds as CSV."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((m, n, k, f"{time_us:.3f}") for m, n, k, time_us in rows)


def measured():
    """Each shape with the median over `REPEATS` of the mean time of `RUNS` products."""
    import torch

    for m, n, k in shapes():
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            torch.matmul(a, b)
        times = []
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(RUNS):
                torch.matmul(a, b)
            end.record()
            torch.cuda.synchronize()
            times.append(1000.0 * begin.elapsed_time(end) / RUNS)
        yield m, n, k, statistics.median(times)


if __name__ == "__main__":
    write(measured(), sys.stdout)
