"""Random quantised networks compute the same codes, however they are rewritten."""

from __future__ import annotations

import os
import random

import numpy as np
import onnx
import pytest
import quantised_models as models
from convswap.graph.quantised.movements import CodeMover
from convswap.graph.swap import swap
from onnx import helper
from onnxruntime.quantization import QuantType
from test_quantised import check_nodes, data_of

# How many networks a run draws; more by the environment variable.
GRAPHS, USUAL = "CONVSWAP_TEST_GRAPHS", 24
ACTIVATIONS = (QuantType.QUInt8, QuantType.QInt8)
STEPS = 8


def drawn_network(draw: random.Random) -> onnx.ModelProto:
    """Return a network of float32 with branches, of which each value may have several readers."""
    graph = models.GraphBuilder(draw.randrange(1000))
    values = [("x", 8)]

    def activated(value: str) -> str:
        kind = draw.choice(("", "Relu", "LeakyRelu", "SiLU", "Sigmoid"))
        if kind == "SiLU":
            return graph.add("Mul", value, graph.add("Sigmoid", value))
        return graph.add(kind, value) if kind else value

    def conv(value: str, channels: int) -> tuple[str, int]:
        filters = draw.choice((4, 8, 16))
        return activated(graph.conv(value, channels, filters, draw.choice((1, 3)))), filters

    values.append(conv(*values[0]))
    for _ in range(STEPS):
        value, channels = draw.choice(values[1:])
        same = [name for name, count in values[1:] if count == channels and name != value]
        kind = draw.choice(("Conv", "Conv", "Concat", "Split", "Add", "Mul", "MaxPool"))
        if kind == "Conv":
            values.append(conv(value, channels))
        elif kind == "Concat":
            others = draw.sample(values[1:], min(2, len(values) - 1))
            name = graph.add("Concat", *(name for name, _ in others), axis=1)
            values.append((name, sum(count for _, count in others)))
        elif kind == "Split" and channels % 4 == 0:
            halves = [f"half_{len(graph.nodes)}_{number}" for number in range(2)]
            extents = graph.constant([channels // 2] * 2, np.int64)
            node = helper.make_node("Split", [value, extents], halves, name=halves[0], axis=1)
            graph.nodes.append(node)
            values += [(name, channels // 2) for name in halves]
        elif kind in ("Add", "Mul") and same:
            values.append((graph.add(kind, value, draw.choice(same)), channels))
        elif kind == "MaxPool":
            values.append((graph.add(kind, value, kernel_shape=[3, 3], pads=[1] * 4), channels))
    outputs = [conv(*values[-1])[0], draw.choice(values[1:])[0]]
    value, channels = draw.choice(values[1:])
    if draw.random() < 0.5:
        rows = graph.add("Flatten", graph.add("GlobalAveragePool", value))
    else:
        rows = graph.add("ReduceMean", value, axes=[2, 3], keepdims=0)
    weights = graph.constant(graph.numbers.standard_normal((channels, draw.choice((5, 16)))))
    outputs.append(graph.add("Gemm", rows, weights, name="product"))
    return graph.model(["n", 8, 9, 7], list(dict.fromkeys(outputs)))


@pytest.mark.slow
@pytest.mark.parametrize("qdq", [True, False], ids=["QDQ", "QOperator"])
def test_random_networks_have_the_same_codes(qdq, monkeypatch):
    count = int(os.environ.get(GRAPHS, USUAL)) // 2
    requantising = moved = products = 0
    for seed in range(count):
        draw = random.Random(seed)
        # With weights of seven bits the CPU provider's 16-bit sums of products cannot overflow.
        original = models.quantised(
            drawn_network(draw),
            qdq=qdq,
            per_channel=draw.random() < 0.5,
            activations=draw.choice(ACTIVATIONS),
            reduce_range=not qdq,
        )
        result = swap(original, fuse=True)
        check_nodes(original, result)
        message, feeds = result.to_proto(), data_of(original, seed=seed)
        with monkeypatch.context() as patch:
            patch.setattr(CodeMover, "concatenate", lambda _, chains: chains)
            patch.setattr(CodeMover, "move", lambda _: None)
            patch.setattr(CodeMover, "requantise", lambda _: [])
            plain = swap(original, fuse=True).to_proto()
        # The product, the last output, may be one of numbers in `plain`.
        for one, other in zip(
            models.run_swapped(message, feeds)[:-1], models.run_swapped(plain, feeds)[:-1], strict=True
        ):
            np.testing.assert_array_equal(one, other, err_msg=f"seed {seed}")
        names, plain_names = ([node.name for node in models.quant_convs(each)] for each in (message, plain))
        requantising += len({*names} - {*plain_names, "product", "product_quant/Gemm"})
        products += bool({"product", "product_quant/Gemm"} & {*names})
        moved += models.ops(plain).count("DequantizeLinear") - models.ops(message).count("DequantizeLinear")
        assert not [op for op in models.ops(message) if op.startswith("QLinear")], f"seed {seed}"
    # The draws would prove nothing otherwise.
    assert requantising > count / 4 and moved > count / 2 and products > count / 2
