"""Times bf16 matrix products on a GPU with PyTorch, as a table that `perfsim calibrate gemm` reads.

    python measure_gemms.py > gemms.csv

It needs PyTorch and one free GPU (CUDA or ROCm) with 16 GB, and takes about two minutes; progress goes to the
terminal. Shapes are those of training: tokens by hidden size by hidden size, and small ones that tell the
cost of a launch.
"""

import csv
import itertools
import statistics
import sys

TOKENS = (128, 512, 2048, 8192, 32768)
WIDTHS = (512, 1024, 2048, 4096, 8192, 16384)
COLUMNS = ("m", "n", "k", "time_us")
WARM_UP, REPEATS, RUNS = 3, 5, 10


def shapes():
    """The products (m, n, k) that are timed: an m x k matrix by a k x n one."""
    return list(itertools.product(TOKENS, WIDTHS, WIDTHS))


def time_us(torch, m, n, k):
    """Microseconds of one product: the median over `REPEATS` of the mean time of `RUNS` products."""
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    for _ in range(WARM_UP):
        torch.matmul(a, b)
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(RUNS):
            torch.matmul(a, b)
        end.record()
        torch.cuda.synchronize()
        times.append(1000.0 * begin.elapsed_time(end) / RUNS)  # events tell milliseconds
    return statistics.median(times)


def main():
    """Write the table to standard output."""
    try:
        import torch
    except ImportError:
        sys.exit("measure_gemms.py needs PyTorch, which is not installed here (https://pytorch.org)")
    if not torch.cuda.is_available():
        sys.exit("measure_gemms.py needs a GPU; PyTorch finds none here")
    sys.stderr.write(f"timing {len(shapes())} products on {torch.cuda.get_device_name()}\n")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for count, (m, n, k) in enumerate(shapes(), 1):
        writer.writerow((m, n, k, f"{time_us(torch, m, n, k):.3f}"))
        sys.stderr.write(f"\r{count} of {len(shapes())}")
    sys.stderr.write("\n")


if __name__ == "__main__":
    main()
