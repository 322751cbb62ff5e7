"""Write a network with its weights, its input and its output in float16, to compare it as one of a user's.

python benchmarks/float16_network.py resnet50 resnet50-16.onnx
convswap compare resnet50-16.onnx --images 64 --no-layers --fuse
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import onnx
from convswap.errors import ConvswapError
from convswap.inputs.subject import open_model
from onnx import TensorProto, numpy_helper

FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16


def _rounded(tensor: TensorProto) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)


def to_float16(model: onnx.ModelProto) -> None:
    """Round every float32 tensor of the main graph to float16, and declare its values so, in place."""
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.data_type == FLOAT:
            tensor.CopyFrom(_rounded(tensor))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == FLOAT:
                attribute.t.CopyFrom(_rounded(attribute.t))
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = FLOAT16
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = FLOAT16


def main() -> int:
    """Read the command line and write the file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", metavar="NETWORK", help="as for convswap compare")
    parser.add_argument("file", metavar="FILE", help="where the model goes")
    options = parser.parse_args()
    try:
        _, model = open_model(options.network)
        to_float16(model)
        onnx.save(model, options.file)
    except (ConvswapError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
