"""Fits the last layer of a network to labelled images, on top of its seeded weights, by ridge regression.

Hoerl and Kennard, "Ridge Regression" (1970); Hastie, Tibshirani and Friedman, "The Elements of Statistical
Learning" (2nd edition), sections 3.4.1 and 4.2. With features X standardised to Z (mean 0, variance 1),
targets Y (1 for the class, 0 elsewhere) and n images, the coefficients are

    V = (ZᵀZ / n + λ I)⁻¹ Zᵀ(Y - mean(Y)) / n

so λ is relative to a feature's variance of 1. Standardising is linear and is folded into the layer:
weight = (V / std)ᵀ, bias = mean(Y) - weight mean(X).

The regression's targets are 0 and 1, which softmax would turn into nearly equal probabilities. Weight and
bias are therefore multiplied by one number, the logit scale, which changes no predicted class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from convswap.data.datasets import Dataset
from convswap.errors import NO_ONNXRUNTIME, ConvswapError
from convswap.export.builder import INPUT, build
from convswap.models import Network, last_fully_connected
from numpy.typing import NDArray

# Images of a run: enough to keep the CPU busy, while the largest tensor of a run stays near 100 MB.
CHUNK = 500

REGULARISATIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
LOGIT_SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

Features = NDArray[np.float32]
Labels = NDArray[np.int64]

Part = tuple[NDArray[np.float32], NDArray[np.int64]]
Progress = Callable[[int, int], None]


def features_in_chunks(
    network: Network,
    weights: Mapping[str, NDArray[np.float32]],
    images: NDArray[np.float32],
) -> Iterator[NDArray[np.float32]]:
    """Yield the inputs of the last fully connected layer, (up to CHUNK, features), for `images` in order.

    `images` is float32 (n, channels, size, size).
    Raises ConvswapError if ONNX Runtime is not installed.
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


@dataclass(frozen=True)
class RidgeFit:
    """A fitted layer: `weight` (classes, features) and `bias` (classes,), float32, and the fit's settings."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    regularisation: float
    logit_scale: float
    held_out_accuracy: float


def fit_last_layer(
    fitting: Iterable[tuple[Features, Labels]], held_out: tuple[Features, Labels], classes: int
) -> RidgeFit:
    """Return the layer fitted to `fitting`, with the λ and the logit scale that are best for `held_out`.

    Features are (images, features), labels (images,) from 0 to classes - 1. `fitting` yields any number of
    parts, which are reduced to float64 sums. λ is the element of REGULARISATIONS with the highest held-out
    accuracy, the largest if several are equal. The scale is the element of LOGIT_SCALES with the lowest
    held-out cross-entropy.
    Raises ValueError if `fitting` has no image.
    """
    sums = _Moments()
    for features, labels in fitting:
        sums.add(features, np.eye(classes)[labels])
    features, labels = held_out[0].astype(np.float64), held_out[1]

    candidates = []
    for regularisation in REGULARISATIONS:
        weight, bias = sums.solve(regularisation)
        logits = features @ weight.T + bias
        accuracy = float(np.mean(logits.argmax(axis=1) == labels))
        candidates.append((accuracy, regularisation, weight, bias, logits))
    accuracy, regularisation, weight, bias, logits = max(candidates, key=lambda candidate: candidate[:2])
    scale = min(LOGIT_SCALES, key=lambda scale: _cross_entropy(scale * logits, labels))
    return RidgeFit(
        (scale * weight).astype(np.float32),
        (scale * bias).astype(np.float32),
        regularisation,
        scale,
        accuracy,
    )


class _Moments:
    """Sums over images from which the regression is solved; their size does not depend on the images."""

    def __init__(self) -> None:
        self.images = 0
        self._moments: NDArray[np.float64] | float = 0.0
        self._targets: NDArray[np.float64] | float = 0.0

    def add(self, features: Features, targets: NDArray[np.float64]) -> None:
        extended = np.hstack([features.astype(np.float64), np.ones((len(features), 1))])
        self.images += len(features)
        self._moments = self._moments + extended.T @ extended
        self._targets = self._targets + extended.T @ targets

    def solve(self, regularisation: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if not self.images:
            raise ValueError("nothing to fit: no images")
        moments = np.asarray(self._moments) / self.images
        targets = np.asarray(self._targets) / self.images
        mean, mean_target = moments[-1, :-1], targets[-1]
        covariance = moments[:-1, :-1] - np.outer(mean, mean)
        cross = targets[:-1] - np.outer(mean, mean_target)
        # A constant feature has variance 0. Dividing by 1 leaves its standardised value 0 instead of 0 / 0.
        variance = np.diag(covariance)
        deviation = np.sqrt(np.where(variance > 1e-12 * (1.0 + mean**2), variance, 1.0))
        correlation = covariance / np.outer(deviation, deviation)
        coefficients = np.linalg.solve(
            correlation + regularisation * np.eye(len(mean)), cross / deviation[:, None]
        )
        weight = (coefficients / deviation[:, None]).T
        return weight, mean_target - weight @ mean


def _cross_entropy(logits: NDArray[np.float64], labels: Labels) -> float:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(log_sums - shifted[np.arange(len(labels)), labels]))


def fit_to(
    network: Network,
    weights: Mapping[str, NDArray[np.float32]],
    data: Dataset,
    progress: Progress | None = None,
) -> RidgeFit:
    """Return the last layer of `network` fitted to `data`, whose images have the network's size.

    The last tenth of the images is held out to choose λ. `progress(done, total)` is called after each chunk.
    Raises ConvswapError if `data` has no labels, or fewer than two images.
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

    held_out_chunks = list(chunks(images[-held_out:], labels[-held_out:]))
    held_out_features = np.concatenate([features for features, _ in held_out_chunks])
    return fit_last_layer(
        chunks(images[:-held_out], labels[:-held_out]),
        (held_out_features, labels[-held_out:]),
        classes=last_fully_connected(network).output_shape[0],
    )
