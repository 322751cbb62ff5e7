"""The networks match the course's, and seeded weights are the same on every machine."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter

import numpy as np
import pytest
from convswap.errors import ConvswapError
from convswap.models import (
    IMAGE,
    NETWORKS,
    Activation,
    BatchNormalization,
    Concatenation,
    Convolution,
    Flatten,
    FullyConnected,
    Keep,
    Split,
    Take,
    find,
    place,
    seeded_weights,
)
from convswap.models.networks import PIXEL_SCALE

# Shapes of the course's checkpoints and, for 2020, of its weights file, without arrays that the course
# ignores.
COURSE_SHAPES = {
    "ece408-2017-high": [(50, 1, 5, 5), (500, 7200), (500,), (10, 500), (10,)],
    "ece408-2017-low": [(50, 1, 5, 5), (500, 7200), (500,), (10, 500), (10,)],
    "ece408-2018sp": [(6, 1, 5, 5), (16, 6, 5, 5), (140, 10816), (140,), (10, 140), (10,)],
    "ece408-2018fa": [(12, 1, 7, 7), (24, 12, 7, 7), (160, 17496), (160,), (10, 160), (10,)],
    "ece408-2019sp": [(6, 1, 5, 5), (16, 6, 5, 5), (140, 5184), (140,), (10, 140), (10,)],
    "baseline-2019sp": [(12, 1, 7, 7), (24, 12, 7, 7), (160, 5400), (160,), (10, 160), (10,)],
    "ece408-2019fa": [(12, 1, 5, 5), (24, 12, 5, 5), (160, 20184), (160,), (10, 160), (10,)],
    "ece408-2020": [(4, 1, 7, 7), (16, 4, 7, 7), (32, 1296), (32,), (10, 32), (10,)],
}


# Hashes of names, shapes and values of the seeded weights. Training starts from them, so other bits would
# give other trained weights.
SEEDED_SHA256 = {
    "ece408-2017-high": "bdf1067c45e356333d0dd8eb99859597ebb917b3e072fa0b9df8b35fe34bb6bf",
    "ece408-2017-low": "13b060663c6fc53c6787df34b7186ea7506077f7b1dedcee88a1082211aefe49",
    "ece408-2018sp": "076bc0083e98260bba0a50ad3713386c95eb02db1293d3efb7606aad2efa366d",
    "ece408-2018fa": "e4fe58d62316a4767e4ef523cec10e0c41b587c1d22b9d8270a963ba905665b4",
    "ece408-2019sp": "8bda22f69d7c7646d7c5cfe74253dddfe09701180bcf0e24e419c56df6018910",
    "baseline-2019sp": "83d78a900e0be057398e004779fa38712588d82495caaf17b7fc48a78563ae47",
    "ece408-2019fa": "a4f1f42108a334eafca2e5a92a533ff528ffeeffb7d2a74dfafc9600d9d13358",
    "ece408-2020": "aa4c10a95c33ef7c189a9c6f29c681d911c2cec2b1438f26c315b1ddf6b3d019",
}


def parameter_shapes(network):
    return [shape for placed in place(network) for shape in placed.parameters.values()]


def test_the_eight_networks_of_the_course_are_there():
    assert set(NETWORKS) == set(COURSE_SHAPES)


@pytest.mark.parametrize("name", COURSE_SHAPES)
def test_the_arrays_have_the_shapes_of_the_course(name):
    assert parameter_shapes(find(name)) == COURSE_SHAPES[name]


def test_2020_has_the_sizes_of_the_course_weights_file():
    # The file counts weights and biases of each layer together, those of the convolutions included.
    first, second, hidden, _, last, _ = (math.prod(shape) for shape in COURSE_SHAPES["ece408-2020"])
    assert (first + 4, second + 16, hidden + 32, last + 10) == (200, 3152, 41504, 330)
    pooled = [placed.output_shape for placed in place(find("ece408-2020")) if placed.name == "pool2"]
    assert pooled == [(16, 9, 9)]


def test_layers_are_named_by_kind_and_number():
    names = [placed.name for placed in place(find("ece408-2019fa"))]
    assert names == ["conv1", "tanh1", "pool1", "conv2", "flatten1", "fc1", "tanh2", "fc2", "softmax1"]


def test_yolov8n_has_the_layers_of_the_published_network():
    placed = place(find("yolov8n"))
    numbers = Counter(type(each.layer) for each in placed)
    # Two in the stem, five more of stride 2, 2 + 2 n in each of eight C2f of n bottlenecks, two in the SPPF,
    # and twice three in each of three heads. The published 64th Conv decodes boxes.
    c2f = sum(2 + 2 * bottlenecks for bottlenecks in (1, 2, 2, 1, 1, 1, 1, 1))
    assert numbers[Convolution] == 2 + 5 + c2f + 2 + 18 == 63
    assert numbers[BatchNormalization] == numbers[Activation] == 57
    assert [each.output_shape for each in placed if isinstance(each.layer, Concatenation)][-4:] == [
        (144, 40, 40),
        (144, 20, 20),
        (144, 10, 10),
        (144, 2100),
    ]
    # At the published image size it has the published 8,400 boxes.
    assert place(dataclasses.replace(find("yolov8n"), image_size=640))[-1].output_shape == (144, 8400)


def test_split_parts_and_kept_values_are_sources_of_later_layers():
    layers = (Keep("image"), Split(("a", "b", "c")), Keep("c"), Take("a"), Concatenation(("b", "c", "image")))
    network = dataclasses.replace(find("yolov8n"), layers=layers)
    split, joined = place(network)
    assert (split.sources, split.outputs) == ((IMAGE,), ("split1.0", "split1.1", "split1.2"))
    assert (joined.sources, joined.outputs) == (("split1.1", "split1.2", IMAGE), ("concat1",))
    assert (split.output_shape, joined.output_shape) == ((1, 320, 320), (5, 320, 320))


def test_an_unknown_network_is_refused_with_the_nearest_name():
    with pytest.raises(ConvswapError, match="unknown network 'ece408-2019af'; did you mean 'ece408-2019fa'"):
        find("ece408-2019af")


@pytest.mark.parametrize(
    "layers",
    [
        (FullyConnected(10),),
        (Flatten(), Convolution(4, 5)),
        (Convolution(4, 29),),
    ],
)
def test_a_layer_that_does_not_fit_what_comes_before_is_refused(layers):
    with pytest.raises(ValueError):
        place(dataclasses.replace(find("ece408-2017-high"), layers=layers))


@pytest.mark.parametrize("name", NETWORKS)
def test_seeded_weights_have_the_variance_of_he(name):
    weights = seeded_weights(find(name))
    for number, (array_name, array) in enumerate(weights.items()):
        if array_name.endswith(".bias"):
            assert not array.any()
            continue
        fan_in = math.prod(array.shape[1:])
        deviation = math.sqrt(2.0 / fan_in) / (PIXEL_SCALE if number == 0 else 1.0)
        # The variance of n uniform numbers has a relative deviation of sqrt(0.8 / n); the limit is four of
        # them.
        assert np.mean(array.astype(np.float64) ** 2) == pytest.approx(
            deviation**2, rel=4 * math.sqrt(0.8 / array.size)
        )
        assert np.abs(array).max() <= deviation * math.sqrt(3) * (1 + 1e-6)


def test_seeded_weights_depend_on_the_network_the_array_and_the_seed():
    network = find("ece408-2017-high")
    first = seeded_weights(network)
    for other in (find("ece408-2017-low"), dataclasses.replace(network, seed=1)):
        second = seeded_weights(other)
        correlation = np.corrcoef(first["fc2.weight"].ravel(), second["fc2.weight"].ravel())[0, 1]
        # The correlation of 5,000 independent numbers has a deviation of 1 / sqrt(5000) = 0.014.
        assert abs(correlation) < 0.07
    assert not np.array_equal(first["fc1.weight"][:10, :500], first["fc2.weight"])


@pytest.mark.parametrize("name", NETWORKS)
def test_seeded_weights_are_the_same_everywhere(name):
    weights = seeded_weights(find(name))
    total = hashlib.sha256()
    for array_name, array in sorted(weights.items()):
        total.update(f"{array_name} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
    assert total.hexdigest() == SEEDED_SHA256[name]
