"""Whether an optimisation fits into the memory of the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx

from convswap.graph.weights_apart import Weights
from convswap.runtime.device import Device
from convswap.runtime.memory import (
    free_memory,
    in_bytes,
    kept_by_session,
    mapped,
    too_large,
    too_much,
    values_of_run,
    while_made,
)

# The message of a model, of its large weights apart, is copied for every model that is made of it.
_MESSAGES = 4
# The original and the model with Convs swapped.
_SIDES = 2


def check_model(model: onnx.ModelProto, weights: Weights, device: Device) -> None:
    """Refuse a model that is so large that the system would end the process; `weights` are apart from it.

    The most is taken where a session of the original is made; or one with some Convs swapped beside it, which
    may have weights of its own; or for the truth, which widens the largest weight to float64.

    Raises:
        ConvswapError: it is.
    """
    free = free_memory()
    if free is None:
        return
    arrays = list(weights.values())
    total = sum(values.nbytes for values in arrays)
    kept = kept_by_session(arrays) if device.name == "cpu" else 0
    widest = max((8 * values.size for values in arrays), default=0)
    *others, largest = sorted(arrays, key=lambda values: values.nbytes) or [np.empty(0)]
    all_swapped = kept + total + kept_by_session(arrays)
    one_swapped = kept + 2 * largest.nbytes + while_made(others)
    most = max(while_made(arrays), all_swapped, one_swapped, widest)
    size = model.ByteSize()
    needed = mapped(arrays) + most + _MESSAGES * size
    if too_much(needed, free):
        what = f"a model of {in_bytes(total + size)}"
        advice = "close other programs, or use `convswap compare` and `convswap swap`, which take less"
        raise too_large("optimizing", what, needed, free, advice)


def check_batch(shapes: Iterable[Sequence[int]], batch: int) -> None:
    """Refuse a batch whose values are too large; `shapes` are those of what the Convs are fed, for a sample.

    Raises:
        ConvswapError: they are.
    """
    free, needed = free_memory(), _SIDES * values_of_run(shapes, batch)
    if free is not None and too_much(needed, free):
        advice = "give a smaller batch, or close other programs"
        raise too_large("optimizing", f"batches of {batch}", needed, free, advice)
