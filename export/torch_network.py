"""A network as a PyTorch module, made from the same declaration as its ONNX model.

This file imports PyTorch, so only import it where PyTorch is needed and known to be installed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import torch
from convswap.models import (
    Activation,
    Convolution,
    Flatten,
    FullyConnected,
    Layer,
    MaxPool,
    Network,
    PlacedLayer,
    Softmax,
    place,
)
from convswap.models.networks import PIXEL_SCALE
from convswap.models.quantisation import GROUP, HIGHEST, LOWEST, groups_of
from convswap.models.stored_weights import in_four_bits
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parametrize

_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class ScaledPixels(nn.Module):
    """Brings pixels, of any type, from 0..255 to about 1: one learning rate then suits every layer."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return `pixels` as float32, divided by a power of two."""
        return pixels.float() / PIXEL_SCALE


class FourBits(nn.Module):
    """Rounds a weight as `models/quantisation.py` stores it; gradients pass as if it had not been rounded.

    Bengio, Léonard and Courville, "Estimating or Propagating Gradients Through Stochastic Neurons" (2013),
    call that the straight-through estimator.
    """

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return `weight` with the values that it has after storing and loading."""
        return weight + (rounded_to_four_bits(weight.detach()) - weight).detach()


def rounded_to_four_bits(weight: torch.Tensor) -> torch.Tensor:
    """Return what `dequantise(*quantise(weight))` gives, on the device of `weight`."""
    size = weight.numel()
    filled = nn.functional.pad(weight.flatten(), (0, groups_of(size) * GROUP - size))
    groups = filled.view(-1, GROUP)
    extreme = groups.gather(1, groups.abs().argmax(dim=1, keepdim=True))
    scales = (extreme / LOWEST).half().float()
    codes = torch.where(scales == 0, 0.0, groups / scales).round().clamp(LOWEST, HIGHEST)
    return (codes * scales).flatten()[:size].view_as(weight)


def torch_network(network: Network, weights: Mapping[str, NDArray[np.float32]]) -> nn.Sequential:
    """Return `network` with `weights`, an array for every parameter, as a module on the CPU.

    It takes pixel values 0..255, [batch, channels, size, size], and gives logits [batch, classes]: the loss
    takes in the softmax. Its layers have the network's names, so its parameters have those of `weights`.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(pixels=ScaledPixels())
    for placed in place(network):
        if not isinstance(placed.layer, Softmax):
            layers[placed.name] = _layer(placed.layer, placed)
    module = nn.Sequential(layers)
    module.load_state_dict(
        {name: torch.from_numpy(array * factor) for name, (array, factor) in _scaled(weights).items()}
    )
    return module


def round_large_layers(network: Network, module: nn.Sequential) -> None:
    """From now on, let `module` compute with the weights that are stored in 4 bits rounded to them."""
    for name in in_four_bits(network):
        layer, _, parameter = name.rpartition(".")
        parametrize.register_parametrization(module.get_submodule(layer), parameter, FourBits())


def weights_of(network: Network, module: nn.Sequential) -> dict[str, NDArray[np.float32]]:
    """Return the weights that `module` computes with, by name, as `seeded_weights` has them."""
    arrays = {}
    for name in (name for placed in place(network) for name in placed.parameters):
        layer, _, parameter = name.rpartition(".")
        tensor = getattr(module.get_submodule(layer), parameter)
        arrays[name] = tensor.detach().cpu().numpy()
    return {name: array / np.float32(factor) for name, (array, factor) in _scaled(arrays).items()}


def _scaled(
    weights: Mapping[str, NDArray[np.float32]],
) -> dict[str, tuple[NDArray[np.float32], float]]:
    """Return each array and by how much it is larger in the module, whose pixels are smaller."""
    first = next(iter(weights))
    return {name: (array, PIXEL_SCALE if name == first else 1.0) for name, array in weights.items()}


def _layer(layer: Layer, placed: PlacedLayer) -> nn.Module:
    match layer:
        case Convolution(out_channels=out_channels, kernel=kernel):
            return nn.Conv2d(placed.input_shape[0], out_channels, kernel, bias=False)
        case Activation(function=function):
            return _ACTIVATIONS[function]()
        case MaxPool(kernel=kernel, ceil=ceil):
            return nn.MaxPool2d(kernel, ceil_mode=ceil)
        case Flatten():
            return nn.Flatten()
        case FullyConnected(out_features=out_features):
            return nn.Linear(placed.input_shape[0], out_features)
    raise ValueError(f"no PyTorch module for {layer}")
