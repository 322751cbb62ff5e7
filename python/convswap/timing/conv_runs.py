"""One Conv problem computed by a named algorithm on the real device, over and over, to be timed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np
from onnx import helper

from convswap import _native
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.runtime.device import Device
from convswap.runtime.layers import ConvLayer
from convswap.runtime.sessions import CONVSWAP, BoundRun, make_session, on_device
from convswap.timing.trials import Sample

# Values are repeated beyond this: they do not matter to the time, as long as they are not zeros.
_DISTINCT_VALUES = 1 << 22

Shapes = Mapping[str, Sequence[int]]


def samples_of(
    layer: ConvLayer, shapes: Shapes, algorithms: Sequence[str], device: Device
) -> dict[str, Sample]:
    """Return, for each of the `algorithms`, what runs `layer` with it on `device`.

    `shapes` has those of the layer's inputs that are not constant; they get seeded normal values. All samples
    of one call share their inputs. On a card the time is the card's own, by events; on the CPU it is that of
    a session's run.

    Raises:
        ConvswapError: ONNX Runtime cannot load the one-node model.
        RuntimeError: the card's memory does not suffice.
    """
    fed = {name: spread_values(shapes[name], layer.element_type) for name in layer.fed}
    if device.name == "cuda":
        return _on_card(layer, fed, algorithms)
    return {name: _in_session(layer.with_algorithm(name), fed, device) for name in algorithms}


def spread_values(shape: Sequence[int], element_type: int) -> np.ndarray:
    """Return seeded normal values of `shape`, repeated where they are very many."""
    count = math.prod(shape)
    generator = np.random.default_rng(seed=0)
    distinct = generator.standard_normal(min(count, _DISTINCT_VALUES), dtype=np.float32)
    return np.resize(distinct.astype(helper.tensor_dtype_to_np_dtype(element_type)), shape)


def _on_card(layer: ConvLayer, fed: Mapping[str, np.ndarray], algorithms: Sequence[str]) -> dict[str, Sample]:
    arrays = layer.arrays(fed)
    x, w, bias = _to_card(arrays.x), _to_card(arrays.w), _to_card(arrays.bias)
    others = {name: _to_card(getattr(arrays, name)) for name in ("residual", "depthwise", "depthwise_bias")}
    problem = layer.problem({name: array.shape for name, array in fed.items()})
    y = _native.DeviceArray(problem.output_shape, layer.type_name)

    def sample_of(algorithm: str) -> Sample:
        return lambda runs: _native.conv_device(
            x,
            w,
            bias,
            y,
            **others,
            algorithm=algorithm,
            precision=layer.setting("precision", DEFAULT_PRECISION),
            runs=runs,
            **layer.attributes,
        )

    return {name: sample_of(name) for name in algorithms}


@overload
def _to_card(array: np.ndarray) -> _native.DeviceArray: ...
@overload
def _to_card(array: None) -> None: ...
def _to_card(array: np.ndarray | None) -> _native.DeviceArray | None:
    return None if array is None else _native.DeviceArray.from_numpy(np.ascontiguousarray(array))


def _in_session(layer: ConvLayer, fed: Mapping[str, np.ndarray], device: Device) -> Sample:
    ranks = {name: array.ndim for name, array in fed.items()}
    session = make_session(layer.model(ranks, ours=True), CONVSWAP, device, only_device=True)
    run = BoundRun(session, on_device(fed, device), device)

    def sample(runs: int) -> float:
        start = time.perf_counter()
        for _ in range(runs):
            run.once()
        return (time.perf_counter() - start) * 1e3 / runs

    return sample
