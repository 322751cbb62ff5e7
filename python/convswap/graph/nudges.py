"""A model whose Convs answer a little off, to see how much it makes of that."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import helper, numpy_helper

from convswap.graph.unique_names import UniqueNames


def nudged(model: onnx.ModelProto, nudge: float, seed: int) -> onnx.ModelProto:
    """Return a copy of `model` in which every Conv of the main graph answers `nudge` of itself more or less.

    Which of the two is drawn for each Conv. One whose element type cannot be told from its weights is taken
    for one of float32.
    """
    generator = np.random.default_rng(seed)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kinds = {tensor.name: tensor.data_type for tensor in copy.graph.initializer}
    taken = UniqueNames(_names(copy.graph))
    nodes = []
    for node in copy.graph.node:
        nodes.append(node)
        if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or len(node.input) < 2:
            continue
        kind = kinds.get(node.input[1], int(onnx.TensorProto.FLOAT))
        factor, own = taken.take("nudge"), taken.take(node.output[0])
        values = np.array(1 + nudge * generator.choice([-1.0, 1.0]), np.float32)
        copy.graph.initializer.append(
            numpy_helper.from_array(values.astype(helper.tensor_dtype_to_np_dtype(kind)), factor)
        )
        nodes.append(helper.make_node("Mul", [own, factor], [node.output[0]]))
        node.output[0] = own
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(kept)
    return copy


def _names(graph: onnx.GraphProto) -> Iterable[str]:
    yield from (value.name for value in (*graph.input, *graph.output, *graph.value_info))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (*node.input, *node.output)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _names(attribute.g)
