"""The networks as models, each exported once for all tests: VGG-16's half a gigabyte takes many seconds."""

from __future__ import annotations

import functools

import onnx
from convswap import export


@functools.cache
def exported(name: str) -> onnx.ModelProto:
    """Return the model of a network. All tests share it, so a test must copy it before changing it."""
    return export.export_network(name)
