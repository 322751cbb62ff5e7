"""Tensors between Convs in NHWC: random models keep their outputs, and known models change as they should."""

from __future__ import annotations

import os

import convswap
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from convswap.errors import ConvswapError
from convswap.graph.layout.choose import LayoutChange, change_layouts
from convswap.graph.layout.costs import ConversionCosts
from convswap.graph.names import node_names
from convswap.graph.swap import swap
from convswap.graph.value_types import ValueTypes
from layout_models import RandomCosts, RandomLayoutModel
from onnx import TensorProto, helper, numpy_helper
from repeats import repeats

# Environment variable with the number of graphs to draw, for longer runs.
GRAPHS = "CONVSWAP_TEST_GRAPHS"
# Of a tensor's root mean square: sums of up to a dozen nodes in another order. A wrong axis gives about 1.
TOLERANCES = {np.dtype(np.float32): 1e-4, np.dtype(np.float16): 3e-2}
SEEDS_OF_A_TEST = 25


def session_of(model: onnx.ModelProto | ir.Model) -> onnxruntime.InferenceSession:
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    convswap.register(options)
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def assert_same(expected: list[np.ndarray], actual: list[np.ndarray], note: str) -> None:
    for first, second in zip(expected, actual, strict=True):
        assert first.shape == second.shape, note
        tolerance = TOLERANCES[first.dtype]
        first, second = first.astype(np.float64), second.astype(np.float64)
        limit = tolerance * (np.linalg.norm(first) + np.sqrt(first.size))
        assert np.linalg.norm(first - second) <= limit, note


def changed(model: onnx.ModelProto, costs, *, fuse: bool = True) -> tuple[ir.Model, LayoutChange]:
    swapped = swap(model, fuse=fuse).model
    types = ValueTypes(swapped)
    return swapped, change_layouts(swapped, node_names(swapped), types, costs(types))


@pytest.mark.slow
@pytest.mark.parametrize("first", [SEEDS_OF_A_TEST * number for number in range(8)])
def test_random_models_give_the_same_outputs_in_any_layout(first):
    count = int(os.environ.get(GRAPHS, 8 * SEEDS_OF_A_TEST)) // 8
    nhwc = carried = removed = 0
    for seed in range(first * count // SEEDS_OF_A_TEST, first * count // SEEDS_OF_A_TEST + count):
        drawn = RandomLayoutModel(seed)
        feeds = drawn.feeds(2)
        expected = session_of(drawn.model).run(None, feeds)
        for costs in (ConversionCosts, lambda _, seed=seed: RandomCosts(seed, 1.0)):
            model, change = changed(drawn.model, costs, fuse=seed % 3 > 0)
            assert_same(expected, session_of(model).run(None, feeds), f"seed {seed}")
            nhwc, carried = nhwc + len(change.nodes), carried + len(change.carried)
            removed += change.removed
    # The draws would prove nothing if few nodes changed.
    assert nhwc > 2 * count
    assert carried > 2 * count
    assert removed > 0
