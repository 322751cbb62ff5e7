"""Fits the last layer of a network to labelled images, on top of its seeded weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from convswap.data.datasets import Dataset
from convswap.errors import ConvswapError
from convswap.export.features import CHUNK, features_in_chunks
from convswap.export.ridge import RidgeFit, fit_last_layer
from convswap.models import Network, last_fully_connected
from numpy.typing import NDArray

Part = tuple[NDArray[np.float32], NDArray[np.int64]]
Progress = Callable[[int, int], None]


def fit_to(
    network: Network,
    weights: Mapping[str, NDArray[np.float32]],
    data: Dataset,
    progress: Progress | None = None,
) -> RidgeFit:
    """Return the last layer of `network` fitted to `data`, whose images have the network's size.

    The last tenth of the images is held out to choose λ. `progress(done, total)` is called as images are
    done.
    Raises ConvswapError where `data` has no labels, or fewer than two images.
    """
    images, labels = data.images, data.labels
    if labels is None or len(images) < 2:
        raise ConvswapError(
            f"a last layer cannot be fitted to {data.name}: expected two labelled images or more"
        )
    held_out = max(1, len(images) // 10)
    done = 0

    def chunks(images: NDArray[np.float32], labels: NDArray[np.int64]) -> Iterator[Part]:
        nonlocal done
        parts = features_in_chunks(network, weights, images)
        for start, features in zip(range(0, len(images), CHUNK), parts, strict=True):
            yield features, labels[start : start + CHUNK]
            done += len(features)
            if progress is not None:
                progress(done, len(data.images))

    seen = list(chunks(images[-held_out:], labels[-held_out:]))
    held_out_features = np.concatenate([features for features, _ in seen])
    return fit_last_layer(
        chunks(images[:-held_out], labels[:-held_out]),
        (held_out_features, labels[-held_out:]),
        classes=last_fully_connected(network).output_shape[0],
    )
