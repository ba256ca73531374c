"""The GEMMs of a layer and the splits that follow from the forward one."""

from __future__ import annotations

import numpy as np
import pytest

from perfsim.numerics.partitions import GemmPass, GemmShape, layer_gemms, partition_of


def test_the_three_gemms_of_a_layer_have_the_shapes_of_its_matrix_products() -> None:
    m = 5
    n = 7
    k = 3
    x = np.ones((m, k))
    w = np.ones((k, n))
    dy = np.ones((m, n))
    shapes = layer_gemms(GemmShape(m, n, k))
    operands = {"forward": (x, w), "dgrad": (dy, w.T), "wgrad": (x.T, dy)}
    for which, (left, right) in operands.items():
        assert shapes[which] == GemmShape(left.shape[0], right.shape[1], left.shape[1])
        assert shapes[which].flop == 2 * m * n * k


@pytest.mark.parametrize(
    ("which", "column", "row", "sequence"),
    [
        ("forward", "column", "row", "sequence"),
        ("dgrad", "row", "column", "sequence"),
        ("wgrad", "column", "sequence", "row"),
    ],
)
def test_a_split_dimension_is_split_in_all_three_gemms(
    which: GemmPass, column: str, row: str, sequence: str
) -> None:
    """Column splits n, row splits k and sequence splits m of the forward GEMM."""
    dimension = {"column": "n", "row": "k", "sequence": "m"}
    position = {"forward": "mnk", "dgrad": "mkn", "wgrad": "knm"}[which]
    by_position = {0: "sequence", 1: "column", 2: "row"}
    for forward, expected in (("column", column), ("row", row), ("sequence", sequence)):
        assert partition_of(forward, which) == expected
        assert by_position[position.index(dimension[forward])] == expected
