"""Turns networks, course checkpoints and PyTorch modules into ONNX models."""

from __future__ import annotations

import os

import onnx
from convswap.data import datasets
from convswap.errors import ConvswapError
from convswap.export.alexnet import read_alexnet
from convswap.export.builder import build
from convswap.export.byte_reader import read_checkpoint_file
from convswap.export.calibration import batch_statistics
from convswap.export.fitting import Progress, fit_to
from convswap.export.mini_dnn import read_mini_dnn
from convswap.export.mxnet import read_mxnet
from convswap.export.torch_module import export_torch
from convswap.export.training import TrainedNetwork, train_network
from convswap.graph.model_file import model_from_proto, save_model
from convswap.models import (
    ALL_NETWORKS,
    RANDOM,
    Network,
    StoredWeights,
    find,
    last_fully_connected,
    packaged_weights,
    seeded_weights,
    unpack_weights,
)

__all__ = [
    "Progress",
    "TrainedNetwork",
    "export_network",
    "export_torch",
    "networks",
    "read_alexnet",
    "read_mini_dnn",
    "read_mxnet",
    "save",
    "train_network",
]

# What a last layer is fitted to for data other than the trained weights': enough for an accuracy to mean
# something, few enough to wait for.
FITTING_IMAGES = 2_000
# The largest that `convswap train` writes takes 2 MB.
LARGEST_WEIGHTS_FILE = 64 << 20


def networks() -> tuple[Network, ...]:
    """Return every network that `export_network` knows: the course's in its order, then the large ones."""
    return tuple(ALL_NETWORKS.values())


def export_network(
    name: str,
    *,
    data: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> onnx.ModelProto:
    """Return the network called `name` as an ONNX model: opset 20, IR 9, a symbolic batch.

    The input `image` is float32 [batch, channels, size, size]. The course's networks take pixel values 0..255
    and give `probabilities`, float32 [batch, classes]. Their weights are those in the file `weights`, which
    `convswap train` wrote. Without one, they are for Fashion-MNIST, the default `data`, the trained ones of
    the package. For any other data set that `convswap.data.datasets.load` knows they come from a fixed seed,
    with a last layer that is fitted here, in seconds; `progress(done, total)` counts the images. The large
    networks take values of mean 0 and variance 1, for which `data` is "random", and give `logits`; their
    weights come from a fixed seed, and the statistics of their batch normalisation are measured here. The
    model's properties name the network, the data and the origin of the weights.

    Raises ConvswapError for an unknown network or data set, data that do not suit the network, a file that
    cannot be read, is damaged or belongs to another network, and where ONNX Runtime is needed and not
    installed.
    """
    network = find(name)
    if data is None:
        data = network.data
    if network.data == RANDOM:
        if weights is not None:
            raise ConvswapError(
                f"{name} has no trained weights, but {os.fspath(weights)!r} was given; leave it out"
            )
        if data != RANDOM:
            raise ConvswapError(
                f"{name} is not fitted to data, but {data!r} was given; leave it out, or use {RANDOM}"
            )
        return _export_unfitted(network)
    if weights is not None:
        content = read_checkpoint_file(weights, "a file of `convswap train`", LARGEST_WEIGHTS_FILE)
        return _export_trained(network, unpack_weights(network, content, str(weights)))
    if data == network.data:
        return _export_trained(network, packaged_weights(network))
    return _export_fitted(network, data, progress)


def _export_fitted(network: Network, data: str, progress: Progress | None) -> onnx.ModelProto:
    labelled = datasets.load(data, split="train", images=FITTING_IMAGES, image_size=network.image_size)
    arrays = seeded_weights(network)
    fit = fit_to(network, arrays, labelled, progress)
    layer = last_fully_connected(network).name
    arrays |= {f"{layer}.weight": fit.weight, f"{layer}.bias": fit.bias}
    metadata = {
        "network": network.name,
        "dataset": data,
        "weights": f"He-initialised from a seed; {layer} fitted to {data} by ridge regression",
    }
    return build(network, arrays, metadata)


def _export_trained(network: Network, stored: StoredWeights) -> onnx.ModelProto:
    metadata = {
        "network": network.name,
        "dataset": stored.made["data"],
        "weights": f"trained on {stored.made['data']} by `{stored.made['command']}`",
    }
    return build(network, stored.arrays, metadata)


def _export_unfitted(network: Network) -> onnx.ModelProto:
    weights = seeded_weights(network)
    statistics = batch_statistics(network, weights)
    origin = "seeded" + (", statistics of one seeded batch" if statistics else "")
    metadata = {"network": network.name, "dataset": network.data, "weights": origin}
    return build(network, {**weights, **statistics}, metadata, output="logits")


def save(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write `model` to `path`, all of it or nothing.

    Raises ConvswapError where the folder is missing, the place is no regular file or cannot be written.
    """
    save_model(model_from_proto(model), path)
