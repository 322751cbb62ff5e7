"""Models that are changed to see what answers depend on: Convs a little off, and random numbers by seeds."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from convswap.graph.names import UniqueNames, names_in
from convswap.graph.serialisation import copy_of, nodes_of_model

# Of ONNX's own domain, with the type of their attribute `seed`.
_SEED_TYPES: dict[str, type[int] | type[float]] = {
    "Bernoulli": float,
    "Dropout": int,
    "Multinomial": float,
    "RandomNormal": float,
    "RandomNormalLike": float,
    "RandomUniform": float,
    "RandomUniformLike": float,
}
_SEED = 1


def nudged(model: onnx.ModelProto, nudge: float, seed: int) -> onnx.ModelProto:
    """Return a copy of `model` in which every Conv of the main graph answers `nudge` of itself more or less.

    Which of the two is drawn for each Conv. One whose element type cannot be told from its weights is taken
    for one of float32.
    """
    generator = np.random.default_rng(seed)
    copy = copy_of(model)
    kinds = {tensor.name: tensor.data_type for tensor in copy.graph.initializer}
    taken = UniqueNames(names_in(copy.graph))
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


def seeded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` in which every operator of ONNX that draws random numbers has the same seed.

    One for all: what is swapped or fused around them changes neither their number nor what each draws.
    """
    copy = copy_of(model)
    for node in nodes_of_model(copy):
        kind = _SEED_TYPES.get(node.op_type)
        if kind is None or node.domain not in ("", "ai.onnx"):
            continue
        kept = [attribute for attribute in node.attribute if attribute.name != "seed"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("seed", kind(_SEED))])
    return copy
