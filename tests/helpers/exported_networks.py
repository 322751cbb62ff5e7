"""The networks as models, each made once for all tests: VGG-16's half a gigabyte takes many seconds."""

from __future__ import annotations

import functools

import onnx
from convswap import export


@functools.cache
def exported(name: str) -> onnx.ModelProto:
    """Return the model of a network, which is everyone's: whoever changes it makes a copy first."""
    return export.export_network(name)
