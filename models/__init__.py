"""The networks convswap ships: what each consists of, where it came from, and the weights we made for it."""

from convswap.models.heads import Head, read_head
from convswap.models.initialisation import seeded_weights
from convswap.models.layers import Activation, Convolution, Flatten, FullyConnected, Layer, MaxPool, Softmax
from convswap.models.networks import NETWORKS, Network, find
from convswap.models.shapes import PlacedLayer, last_fully_connected, place
from convswap.models.stored_weights import StoredWeights, pack_weights, packaged_weights, unpack_weights

__all__ = [
    "NETWORKS",
    "Activation",
    "Convolution",
    "Flatten",
    "FullyConnected",
    "Head",
    "Layer",
    "MaxPool",
    "Network",
    "PlacedLayer",
    "Softmax",
    "StoredWeights",
    "find",
    "last_fully_connected",
    "pack_weights",
    "packaged_weights",
    "place",
    "read_head",
    "seeded_weights",
    "unpack_weights",
]
