"""A stand-in for PyTorch with a GPU: products advance a clock by the time of a roofline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

bfloat16 = "bfloat16"
_CLOCK = SimpleNamespace(now_s=0.0)


class Matrix(NamedTuple):
    rows: int
    columns: int


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.timed = enable_timing
        self.at_s = 0.0

    def record(self) -> None:
        self.at_s = _CLOCK.now_s

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds, as PyTorch tells them."""
        return 1e3 * (end.at_s - self.at_s)


def randn(rows: int, columns: int, device: str, dtype: str) -> Matrix:
    return Matrix(rows, columns) if (device, dtype) == ("cuda", bfloat16) else Matrix(0, 0)


def matmul(a: Matrix, b: Matrix) -> Matrix:
    m = a.rows
    k = b.rows
    n = b.columns
    compute_s = 2 * m * n * k / (0.7 * 1600e12)
    memory_s = 2 * (m * n + n * k + m * k) / (0.8 * 6e12)
    _CLOCK.now_s += 4e-6 + max(compute_s, memory_s)
    return Matrix(m, n)


cuda = SimpleNamespace(
    Event=Event, is_available=lambda: True, get_device_name=lambda: "X100", synchronize=lambda: None
)
