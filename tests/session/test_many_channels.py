"""More groups, channels, filters and images than 16 bits count, in a session on each provider.

The data are small integers, so that every sum is exact in float32, and its factors are exact in TF32. So one
missing or repeated term among tens of thousands shows, which no bound on rounding errors would detect.
"""

from __future__ import annotations

import numpy as np
from conv_cases import ConvCase, convolve
from each_case import each
from op_sessions import graph_model
from our_sessions import conv, either_way, our_session


def integer_arrays(case: ConvCase) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng([*case.x_shape, *case.w_shape])
    shapes = (case.x_shape, case.w_shape, case.w_shape[:1])
    x, w, b = (random.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return x, w, b


@either_way
@each(
    "case",
    [
        # Around the limit of 65,535 blocks in y of a CUDA grid, and above it.
        ConvCase((1, 65_535, 1, 4), (65_535, 1, 1, 3), attributes={"group": 65_535}),
        ConvCase((1, 65_536, 1, 4), (65_536, 1, 1, 3), attributes={"group": 65_536}),
        ConvCase((2, 70_001, 3, 3), (70_001, 1, 2, 2), attributes={"group": 70_001, "pads": [1, 0, 0, 1]}),
        ConvCase((1, 70_001, 5), (140_002, 1, 3), attributes={"group": 70_001}),
        ConvCase((1, 140_002, 2, 2, 2), (70_001, 2, 1, 2, 2), attributes={"group": 70_001}),
        # Channels, filters, images.
        ConvCase((2, 70_001, 2, 3), (2, 70_001, 1, 1)),
        ConvCase((1, 65_536, 3, 3), (1, 65_536, 2, 2)),
        ConvCase((1, 3, 4, 5), (70_001, 3, 3, 3)),
        ConvCase((1, 2, 3, 3), (65_536, 2, 1, 1)),
        ConvCase((70_001, 1, 5, 5), (2, 1, 3, 3), attributes={"strides": [2, 2]}),
        ConvCase((65_536, 2, 7), (3, 2, 3)),
        # Long rows and columns.
        ConvCase((1, 2, 70_001), (3, 2, 5), attributes={"pads": [2, 2]}),
        ConvCase((1, 1, 70_001, 3), (2, 1, 5, 2), attributes={"strides": [3, 1]}),
    ],
)
def test_more_than_16_bits_count_of_anything_is_exact(case, way, device):
    x, w, b = integer_arrays(case)
    model = graph_model([conv("x w b", **case.attributes)], {"x": case.x_shape}, {"w": w, "b": b}, opset=22)
    y = our_session(model, way, device).run(None, {"x": x})[0]
    reference = convolve(x, w, b, **case.attributes)
    assert np.abs(reference).max() < 2**23
    assert y.shape == reference.shape
    wrong = np.argwhere(y != reference)
    assert wrong.size == 0, f"{len(wrong)} of {y.size} outputs are wrong, the first at {wrong[0].tolist()}"
