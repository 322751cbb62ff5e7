"""Exports networks, course checkpoints and PyTorch modules as ONNX models."""

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

# Images that a last layer is fitted to, for a data set without trained weights. The fit takes seconds.
FITTING_IMAGES = 2_000
# The largest file that `convswap train` writes has 2 MB.
LARGEST_WEIGHTS_FILE = 64 << 20


def networks() -> tuple[Network, ...]:
    """Return the networks of `export_network`: the course's by semester, then the large networks."""
    return tuple(ALL_NETWORKS.values())


def export_network(
    name: str,
    *,
    data: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> onnx.ModelProto:
    """Return the network called `name` as an ONNX model: opset 20, IR 9, a symbolic batch.

    The input `image` is float32 [batch, channels, size, size]. The model's properties name the network, the
    data and the origin of the weights.

    The course's networks take pixel values 0..255; their output is `probabilities`, float32 [batch, classes].
    Their weights are read from the file `weights`, which `convswap train` wrote. Without a file, the weights
    for Fashion-MNIST, the default `data`, are the package's trained weights. For any other data set of
    `convswap.data.datasets.load` the weights come from a fixed seed, and the last layer is fitted here, in
    seconds; `progress(done, total)` counts the images.

    The large networks take values of mean 0 and variance 1, and their `data` is "random"; their output is
    `logits`. Their weights come from a fixed seed, and the statistics of batch normalisation are measured
    here.

    Raises ConvswapError for an unknown network or data set, data that do not suit the network, a file that
    cannot be read, is damaged or belongs to another network, and if ONNX Runtime is needed but missing.
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
    """Write `model` to `path`, either completely or not at all.

    Raises ConvswapError if the folder is missing, or `path` is not a regular file or cannot be written.
    """
    save_model(model_from_proto(model), path)
