"""Makes a PyTorch module from the declaration of a network.

This file imports PyTorch: import it only after a check that PyTorch is installed.
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
from convswap.models.stored_weights import four_bit_parameters
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parametrize

_ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


class ScaledPixels(nn.Module):
    """Scales pixels, of any type, from 0..255 to about 1, so that one learning rate suits every layer."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return `pixels` as float32, divided by a power of two."""
        return pixels.float() / PIXEL_SCALE


class FourBits(nn.Module):
    """Rounds a weight to the 4 bits of `models/quantisation.py`; gradients pass through the rounding.

    Bengio, Léonard and Courville, "Estimating or Propagating Gradients Through Stochastic Neurons" (2013),
    call that the straight-through estimator.
    """

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return `weight` with the values after quantisation and dequantisation."""
        return weight + (rounded_to_four_bits(weight.detach()) - weight).detach()


def rounded_to_four_bits(weight: torch.Tensor) -> torch.Tensor:
    """Compute `dequantise(*quantise(weight))` on the device of `weight`."""
    size = weight.numel()
    padded = nn.functional.pad(weight.flatten(), (0, groups_of(size) * GROUP - size))
    groups = padded.view(-1, GROUP)
    extreme = groups.gather(1, groups.abs().argmax(dim=1, keepdim=True))
    scales = (extreme / LOWEST).half().float()
    codes = torch.where(scales == 0, 0.0, groups / scales).round().clamp(LOWEST, HIGHEST)
    return (codes * scales).flatten()[:size].view_as(weight)


def torch_network(network: Network, weights: Mapping[str, NDArray[np.float32]]) -> nn.Sequential:
    """Return `network` with `weights`, an array for every parameter, as a module on the CPU.

    The input is pixel values 0..255, [batch, channels, size, size]; the output is logits [batch, classes],
    because the loss includes the softmax. Layers and parameters have the names of the network and `weights`.
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
    """Make `module` round the weights that are stored in 4 bits in every later computation."""
    for name in four_bit_parameters(network):
        layer, _, parameter = name.rpartition(".")
        parametrize.register_parametrization(module.get_submodule(layer), parameter, FourBits())


def weights_of(network: Network, module: nn.Sequential) -> dict[str, NDArray[np.float32]]:
    """Return the weights that `module` computes with, by name, in the form of `seeded_weights`."""
    arrays = {}
    for name in (name for placed in place(network) for name in placed.parameters):
        layer, _, parameter = name.rpartition(".")
        tensor = getattr(module.get_submodule(layer), parameter)
        arrays[name] = tensor.detach().cpu().numpy()
    return {name: array / np.float32(factor) for name, (array, factor) in _scaled(arrays).items()}


def _scaled(
    weights: Mapping[str, NDArray[np.float32]],
) -> dict[str, tuple[NDArray[np.float32], float]]:
    """Return each array with its factor in the module: PIXEL_SCALE for the first, as pixels are scaled."""
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
