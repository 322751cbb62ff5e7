"""Computes what the last fully connected layer of a network sees, with ONNX Runtime on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
from convswap.errors import NO_ONNXRUNTIME, ConvswapError
from convswap.export.builder import INPUT, build
from convswap.models import Network, last_fully_connected
from numpy.typing import NDArray

# Large enough to keep the processor busy; the widest layer of a chunk stays near 100 MB.
CHUNK = 500


def features_in_chunks(
    network: Network,
    weights: Mapping[str, NDArray[np.float32]],
    images: NDArray[np.float32],
) -> Iterator[NDArray[np.float32]]:
    """Yield the inputs of the last fully connected layer, (up to CHUNK, features), for `images` in order.

    `images` is float32 (n, channels, size, size).
    Raises ConvswapError where ONNX Runtime is not installed.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ConvswapError(NO_ONNXRUNTIME) from error
    cut = dataclasses.replace(network, layers=network.layers[: last_fully_connected(network).index])
    model = build(cut, weights, {}, output="features").SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for start in range(0, len(images), CHUNK):
        yield session.run(["features"], {INPUT: images[start : start + CHUNK]})[0]
