"""Writes MXNet checkpoints: `.params` files in each of the three layouts, and symbols."""

from __future__ import annotations

import json
import struct

import numpy as np

LAYOUTS = ("storage type", "wide dimensions", "first")
ELEMENT_TYPES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}


def array_bytes(array, layout="storage type"):
    array = np.asarray(array)
    head = {
        "storage type": struct.pack("<IiI", 0xF993FAC9, 0, array.ndim),
        "wide dimensions": struct.pack("<II", 0xF993FAC8, array.ndim),
        "first": struct.pack("<I", array.ndim),
    }[layout]
    dimensions = struct.pack(f"<{array.ndim}{'I' if layout == 'first' else 'q'}", *array.shape)
    type_fields = struct.pack("<3i", 1, 0, ELEMENT_TYPES[array.dtype.name])
    return head + dimensions + type_fields + array.astype(array.dtype.newbyteorder("<")).tobytes()


def params_bytes(arrays, layout="storage type", prefix="arg:"):
    content = struct.pack("<QQQ", 0x112, 0, len(arrays))
    content += b"".join(array_bytes(array, layout) for array in arrays.values())
    content += struct.pack("<Q", len(arrays))
    for name in arrays:
        encoded = f"{prefix}{name}".encode()
        content += struct.pack("<Q", len(encoded)) + encoded
    return content


class SymbolWriter:
    """Builds a symbol as MXNet does, operator after operator; versions differ in `attributes_key`."""

    def __init__(self, attributes_key="attrs"):
        self.nodes = [{"op": "null", "name": "data", "inputs": []}]
        self.last = 0
        self._key = attributes_key

    def add(self, operator, name, arrays=(), **attributes):
        inputs = [[self.last, 0, 0]]
        for array in arrays:
            self.nodes.append({"op": "null", "name": array, "inputs": []})
            inputs.append([len(self.nodes) - 1, 0, 0])
        texts = {key: str(value) for key, value in attributes.items()}
        self.nodes.append({"op": operator, "name": name, self._key: texts, "inputs": inputs})
        self.last = len(self.nodes) - 1
        return self

    def document(self):
        return {"nodes": self.nodes, "arg_nodes": [0], "heads": [[self.last, 0, 0]]}


def write_checkpoint(folder, symbol, arrays, **options):
    symbol_path, params_path = folder / "net-symbol.json", folder / "net-0001.params"
    symbol_path.write_text(json.dumps(symbol.document()))
    params_path.write_bytes(params_bytes(arrays, **options))
    return symbol_path, params_path


def course_symbol(attributes_key="attrs", convolution="New"):
    return (
        SymbolWriter(attributes_key)
        .add(convolution, "conv0", ["conv0_weight"], kernel="(3, 3)", num_filter=4, no_bias=True)
        .add("Activation", "act0", act_type="tanh")
        .add("Pooling", "pool0", kernel="(2,2)", stride="(2,2)", pool_type="max")
        .add("Flatten", "flat0")
        .add("FullyConnected", "fc0", ["fc0_weight", "fc0_bias"], num_hidden=10)
        .add("SoftmaxOutput", "softmax", ["softmax_label"])
    )


def course_arrays(dtype="float32"):
    random = np.random.default_rng(3)
    scale = 0.3 if dtype.startswith("float") else 3.0
    low = 0.0 if dtype == "uint8" else -scale
    shapes = {"fc0_bias": (10,), "conv0_weight": (4, 1, 3, 3), "fc0_weight": (10, 100)}
    return {name: random.uniform(low, scale, shape).astype(dtype) for name, shape in shapes.items()}
