"""A model whose inputs have the shapes of one run, so that all that follows from them is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx


def with_fixed_inputs(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Return a copy of `model` whose inputs have the `shapes` that are given for them.

    What the file says of inner values is left out: it may be of other shapes.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        if value.name in shapes:
            dimensions = value.type.tensor_type.shape.dim
            del dimensions[:]
            for size in shapes[value.name]:
                dimensions.add().dim_value = size
    del copy.graph.value_info[:]
    return copy
