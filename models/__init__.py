"""The networks convswap ships: what each consists of, where it came from, and the weights we made for it."""

from convswap.models.initialisation import seeded_images, seeded_weights
from convswap.models.layers import (
    Activation,
    BatchNormalization,
    ChannelsFirst,
    ChannelsLast,
    Convolution,
    Flatten,
    FullyConnected,
    GlobalAveragePool,
    Layer,
    LayerNormalization,
    LayerScale,
    LocalResponseNormalization,
    MaxPool,
    Residual,
    Softmax,
)
from convswap.models.networks import ALL_NETWORKS, LARGE_NETWORKS, NETWORKS, RANDOM, Network, find
from convswap.models.shapes import IMAGE, PlacedLayer, last_fully_connected, place
from convswap.models.stored_weights import StoredWeights, pack_weights, packaged_weights, unpack_weights

__all__ = [
    "ALL_NETWORKS",
    "IMAGE",
    "LARGE_NETWORKS",
    "NETWORKS",
    "RANDOM",
    "Activation",
    "BatchNormalization",
    "ChannelsFirst",
    "ChannelsLast",
    "Convolution",
    "Flatten",
    "FullyConnected",
    "GlobalAveragePool",
    "Layer",
    "LayerNormalization",
    "LayerScale",
    "LocalResponseNormalization",
    "MaxPool",
    "Network",
    "PlacedLayer",
    "Residual",
    "Softmax",
    "StoredWeights",
    "find",
    "last_fully_connected",
    "pack_weights",
    "packaged_weights",
    "place",
    "seeded_images",
    "seeded_weights",
    "unpack_weights",
]
