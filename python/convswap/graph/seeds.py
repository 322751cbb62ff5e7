"""Seeds for the operators that draw random numbers, so that two sessions draw the same."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import helper

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


def seeded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` in which every operator of ONNX that draws random numbers has the same seed.

    One for all: what is swapped or fused around them changes neither their number nor what each draws.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for nodes in (copy.graph.node, *(function.node for function in copy.functions)):
        _seed_nodes(nodes)
    return copy


def _seed_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _seed_nodes(attribute.g.node)
        kind = _SEED_TYPES.get(node.op_type)
        if kind is None or node.domain not in ("", "ai.onnx"):
            continue
        kept = [attribute for attribute in node.attribute if attribute.name != "seed"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("seed", kind(_SEED))])
