"""Files of trained weights keep their values within the stored types, are small, and detect damage."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import tracemalloc
import zipfile
from importlib import resources

import numpy as np
import pytest
from convswap.errors import ConvswapError
from convswap.models import NETWORKS, find, pack_weights, place, seeded_weights, unpack_weights
from convswap.models.layers import Flatten, FullyConnected
from convswap.models.quantisation import GROUP, dequantise, quantise
from convswap.models.stored_weights import four_bit_parameters, packaged_name, packaged_weights
from refused import refused

# Limit of all weights in the package.
MAX_BYTES = 12_000_000
NETWORK = find("ece408-2020")
MADE = {"data": "fashion-mnist", "command": "convswap train ece408-2020"}
# A small network with a fully connected layer whose 124,033 weights are no multiple of the group size.
ODD = dataclasses.replace(NETWORK, name="odd", image_size=31, layers=(Flatten(), FullyConnected(129)))
ODD_WEIGHTS = seeded_weights(ODD)


@pytest.fixture(scope="module")
def content():
    return pack_weights(NETWORK, seeded_weights(NETWORK), MADE)


def refusal(content, network=NETWORK):
    with refused() as caught:
        unpack_weights(network, content, "some/file.npz")
    message = str(caught.value)
    assert message.startswith(f"'some/file.npz' does not hold the weights of {network.name}: found ")
    assert f"convswap train {network.name} -o FILE" in message
    return message


def in_format_1(content):
    """Return the archive as NumPy's `savez_compressed` wrote it in format 1."""
    entries = dict(np.load(io.BytesIO(content)))
    made = json.loads(str(entries.pop("made")))
    shapes = {}
    for placed in place(find(made["network"])):
        shapes.update(placed.parameters)
    for name, array in entries.items():
        if array.ndim == 2:
            entries[name] = array.T.copy().view(np.float16).reshape(shapes.get(name, -1))
    changed = io.BytesIO()
    np.savez_compressed(changed, **entries, made=np.array(json.dumps({**made, "format": 1})))
    return changed.getvalue()


def with_entry(content, name, value):
    """Return the archive with a new value of entry `name`: an array, raw bytes, or None to remove it."""
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(changed, "w") as new:
        for member in old.namelist():
            if member != f"{name}.npy":
                new.writestr(member, old.read(member))
        if isinstance(value, bytes):
            new.writestr(f"{name}.npy", value)
        elif value is not None:
            array = io.BytesIO()
            np.save(array, value)
            new.writestr(f"{name}.npy", array.getvalue())
    return changed.getvalue()


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000])
def test_four_bits_are_within_half_a_step_of_their_group(size):
    array = np.random.default_rng(size).normal(size=size).astype(np.float32)
    packed, scales = quantise(array)
    assert (packed.dtype, scales.dtype) == (np.uint8, np.float16)
    assert (packed.size, scales.size) == (math.ceil(size / GROUP) * GROUP // 2, math.ceil(size / GROUP))
    restored = dequantise(packed, scales, (size,))
    for start in range(0, size, GROUP):
        group = array[start : start + GROUP].astype(np.float64)
        step = np.abs(group).max() / 8
        # Half a step, or a whole one where the missing code 8 would be nearest, plus the scale's rounding to
        # 11 bits.
        opposite = np.abs(group / group[np.abs(group).argmax()] * -8) > 7.5
        bound = np.where(opposite, 1.0, 0.5) * step + np.abs(group) * 2.0**-10
        assert (np.abs(restored[start : start + GROUP] - group) <= bound).all()
    # The largest value of each group is exact but for the scale's rounding.
    largest = np.abs(array).argmax()
    assert restored[largest] == pytest.approx(array[largest], rel=2.0**-11)


def test_the_codes_are_packed_lower_half_first_with_the_largest_magnitude_at_minus_eight():
    array = np.zeros(GROUP, np.float32)
    array[:4] = [4.0, -3.5, 0.5, -0.5]
    packed, scales = quantise(array)
    assert scales.tolist() == [-0.5]
    # Codes -8, 7, -1, 1 and zeros, each plus 8.
    assert packed[:3].tolist() == [0 | 15 << 4, 7 | 9 << 4, 8 | 8 << 4]
    np.testing.assert_array_equal(dequantise(packed, scales, (GROUP,)), array)


def test_rounding_rounded_values_changes_nothing():
    array = np.random.default_rng(2).normal(size=(50, 77)).astype(np.float32)
    once = dequantise(*quantise(array), array.shape)
    np.testing.assert_array_equal(dequantise(*quantise(once), array.shape), once)


@pytest.mark.parametrize("value", [0.0, 1e-9])
def test_a_group_too_small_for_a_scale_becomes_zero(value):
    packed, scales = quantise(np.full(GROUP, value, np.float32))
    assert not dequantise(packed, scales, (GROUP,)).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_numbers_that_cannot_be_stored_are_refused(value):
    with pytest.raises(ValueError, match="4 bits"):
        quantise(np.full(3, value, np.float32))
    weights = seeded_weights(NETWORK)
    weights["fc1.bias"][3] = value
    with pytest.raises(ValueError, match=r"fc1\.bias"):
        pack_weights(NETWORK, weights, MADE)


def test_small_arrays_come_back_in_float16_and_the_rest_of_the_file_as_given(content):
    weights = seeded_weights(NETWORK)
    stored = unpack_weights(NETWORK, content, "file")
    assert list(stored.arrays) == list(weights)
    for name, array in weights.items():
        assert stored.arrays[name].dtype == np.float32
        np.testing.assert_array_equal(stored.arrays[name], array.astype(np.float16).astype(np.float32))
    assert stored.made == {"format": 2, "network": NETWORK.name, **MADE}
    assert pack_weights(NETWORK, seeded_weights(NETWORK), MADE) == content


def test_a_large_fully_connected_layer_comes_back_in_four_bits():
    assert four_bit_parameters(ODD) == ["fc1.weight"]
    content = pack_weights(ODD, ODD_WEIGHTS, MADE)
    restored = unpack_weights(ODD, content, "file").arrays["fc1.weight"]
    exact = ODD_WEIGHTS["fc1.weight"]
    assert exact.size % GROUP
    np.testing.assert_array_equal(restored, dequantise(*quantise(exact), exact.shape))
    # Uniform numbers in sixteen steps: an error of step / sqrt(12), an eighth of 0.577.
    error = np.sqrt(np.mean((restored - exact) ** 2) / np.mean(exact.astype(np.float64) ** 2))
    assert 0.03 < error < 0.1
    assert len(content) < 4.6 / 8 * exact.size + 2 * 129 + 4000


def test_the_weights_of_all_networks_together_are_below_the_bound():
    total = 0
    for network in NETWORKS.values():
        shapes = {name: shape for placed in place(network) for name, shape in placed.parameters.items()}
        total += len(pack_weights(network, {name: np.ones(shape) for name, shape in shapes.items()}, MADE))
    assert (
        sum(math.prod(s) for n in NETWORKS.values() for p in place(n) for s in p.parameters.values()) > 16e6
    )
    assert total < MAX_BYTES


def test_the_packages_weights_are_below_the_bound():
    files = [entry for entry in (resources.files("convswap.models") / "weights").iterdir()]
    assert files
    assert sum(len(entry.read_bytes()) for entry in files) < MAX_BYTES


@pytest.mark.parametrize("name", NETWORKS)
def test_the_packaged_weights_of_a_network_are_sound(name):
    stored = packaged_weights(find(name))
    assert stored.made["data"] == "fashion-mnist"
    assert stored.made["command"].startswith(f"convswap train {name}")


def test_a_package_without_a_networks_weights_says_so_and_how_to_make_them():
    with pytest.raises(ConvswapError) as caught:
        packaged_weights(ODD)
    message = str(caught.value)
    assert "odd.trained.npz' does not hold the weights of odd: found no file to read" in message
    assert "convswap train odd -o FILE" in message


def test_a_cut_off_file_is_refused_wherever_it_was_cut(content):
    for length in [0, 1, 100, len(content) // 2, len(content) - 30, len(content) - 1]:
        refusal(content[:length])


def test_a_changed_byte_in_an_array_is_found(content):
    # By checksums; in an array's header, by NumPy's errors.
    start = content.index(b"fc1.weight.npy") + 200
    for place_of_byte in range(start, start + 60_000, 7_919):
        changed = bytearray(content)
        changed[place_of_byte] ^= 16
        refusal(bytes(changed))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("fc1.weight", None, "no entry fc1.weight"),
        ("made", None, "no entry made"),
        ("fc1.weight", np.zeros((2, 41471), np.uint8), r"fc1.weight as uint8 [2, 41471]"),
        ("fc1.weight", np.zeros((32, 648), np.float32), r"fc1.weight as float32 [32, 648]"),
        ("fc1.weight", np.zeros(10**6, np.float16), "bytes in its entry fc1.weight"),
        ("fc2.bias", np.full((2, 10), 255, np.uint8), "not finite"),
        ("fc2.bias", b"no array", "fc2.bias, which is no array"),
        ("fc2.bias", np.array([None] * 10), "fc2.bias"),
        ("made", np.array("{"), "not JSON"),
        ("made", np.array("[1]"), "format None"),
        ("made", np.array(json.dumps({"format": 3})), "format 3"),
        ("made", np.array(json.dumps({"format": 2, "network": "odd"})), "weights of 'odd'"),
        ("made", np.array(json.dumps({"format": 2, "network": NETWORK.name})), "no data"),
    ],
)
def test_a_wrong_entry_is_named(content, name, value, words):
    assert words in refusal(with_entry(content, name, value))


@pytest.mark.parametrize("name", ["ece408-2020", "ece408-2019sp"])
def test_a_file_of_format_1_has_the_same_weights(name):
    network = find(name)
    content = (resources.files("convswap.models") / "weights" / packaged_name(network)).read_bytes()
    new, old = (unpack_weights(network, each, "file") for each in (content, in_format_1(content)))
    for parameter, array in new.arrays.items():
        np.testing.assert_array_equal(old.arrays[parameter], array)
    assert old.made == {**new.made, "format": 1}


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_entry_that_unpacks_to_more_than_it_claims_takes_little_memory(content, method):
    bomb = io.BytesIO(with_entry(content, "fc2.bias", None))
    with zipfile.ZipFile(bomb, "a") as archive:
        archive.writestr("fc2.bias.npy", bytes(100_000_000), method)
        archive.getinfo("fc2.bias.npy").file_size = 100
    tracemalloc.start()
    refusal(bomb.getvalue())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80e6


def test_an_array_that_claims_more_than_the_file_holds_is_refused(content):
    claims = io.BytesIO()
    np.lib.format.write_array_header_1_0(claims, {"descr": "<f2", "fortran_order": False, "shape": (10**15,)})
    assert "fc2.bias" in refusal(with_entry(content, "fc2.bias", claims.getvalue()))


def test_a_file_that_is_no_archive_is_refused():
    refusal(b"not an archive at all" * 100)


def test_the_weights_of_another_network_are_refused(content):
    message = refusal(content, find("ece408-2019sp"))
    assert "weights of 'ece408-2020', expected those of 'ece408-2019sp'" in message
