"""The file format of trained weights: a compressed .npz archive without pickled objects.

The weights of a large fully connected layer are two entries, `fc1.weight.codes` and `fc1.weight.scales`, in
the 4 bits of `quantisation.py`. Every other parameter is one float16 entry with its name. The entry `made` is
JSON: the format, the network, the data, the command and the accuracy of the stored weights. The archive's
checksums detect damage.

Format 2, which `pack_weights` writes, compresses with LZMA. A float16 entry is stored as uint8 (2, elements),
its lower bytes and then its upper ones, because the upper ones alone are compressible. Format 1 has deflated
entries, float16 in their shapes.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from convswap.errors import ConvswapError
from convswap.models.layers import FullyConnected
from convswap.models.networks import Network
from convswap.models.quantisation import GROUP, dequantise, groups_of, quantise
from convswap.models.shapes import Shape, place
from numpy.typing import NDArray

# Layers with fewer weights are stored in float16, which takes little space.
LARGE = 100_000
FORMAT = 2
READABLE = (1, FORMAT)
LARGEST_MADE = 1 << 16
# NumPy's limit for the header of a .npy file.
LARGEST_HEADER = 10_000
# Compressed bytes to read at once. LZMA makes thousands of bytes of one, whatever size an archive claims.
CHUNK = 4096
# Errors of a damaged archive: missing parts, wrong checksums, or a flag that claims encryption.
_ARCHIVE_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(OSError, EOFError, MemoryError, NotImplementedError, RuntimeError),
)


@dataclass(frozen=True)
class StoredWeights:
    """Trained weights: a float32 array for every parameter of a network, by name, and the entry `made`."""

    arrays: dict[str, NDArray[np.float32]]
    made: dict[str, Any]


def four_bit_parameters(network: Network) -> list[str]:
    """Return the names of the parameters of `network` that are stored in 4 bits."""
    return [
        name
        for placed in place(network)
        for name, shape in placed.parameters.items()
        if isinstance(placed.layer, FullyConnected) and len(shape) == 2 and math.prod(shape) >= LARGE
    ]


def pack_weights(
    network: Network, arrays: Mapping[str, NDArray[np.float32]], made: Mapping[str, Any]
) -> bytes:
    """Return the content of the file with `arrays`, one for every parameter of `network`.

    `made` is the content of the entry `made`, at least `data` and `command`; the network's name is added.
    Raises ValueError if a number is not finite or too large for its type.
    """
    entries: dict[str, NDArray[Any]] = {}
    four_bit_names = four_bit_parameters(network)
    for name in _parameters(network):
        if name in four_bit_names:
            entries[f"{name}.codes"], entries[f"{name}.scales"] = quantise(arrays[name])
            continue
        with np.errstate(over="ignore"):
            entries[name] = arrays[name].astype(np.float16)
        if not np.isfinite(entries[name]).all():
            raise ValueError(f"{name} has numbers that float16 cannot hold: beyond 65504, infinite or NaN")
    entries["made"] = np.array(json.dumps({"format": FORMAT, "network": network.name, **made}))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in entries.items():
            if array.dtype == np.float16:
                array = array.reshape(-1, 1).view(np.uint8).T.copy()
            member = io.BytesIO()
            np.save(member, array, allow_pickle=False)
            # ZipInfo has a constant date, so equal weights make equal files.
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), zipfile.ZIP_LZMA)
    return content.getvalue()


def unpack_weights(network: Network, content: bytes, title: str) -> StoredWeights:
    """Return the weights in `content`, which `pack_weights` made for `network`; `title` is the file's name.

    Raises ConvswapError if the content is damaged, is not a file of weights, or is for another network.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as opened:
            archive = _Archive(opened, network, title)
            made = archive.made()
            entries = {
                name: archive.entry(name, kind, shape)
                for name, (kind, shape) in _expected_entries(network).items()
            }
    except _ARCHIVE_ERRORS as error:
        raise wrong_file(title, network, f"no sound archive ({error})", "an .npz archive") from error
    arrays = {}
    four_bit_names = four_bit_parameters(network)
    for name, shape in _parameters(network).items():
        if name in four_bit_names:
            arrays[name] = dequantise(entries[f"{name}.codes"], entries[f"{name}.scales"], shape)
        else:
            arrays[name] = entries[name].astype(np.float32)
    return StoredWeights(arrays, made)


def packaged_weights(network: Network) -> StoredWeights:
    """Return the package's trained weights of `network`, one of the course's networks.

    Raises ConvswapError if their file is missing or damaged.
    """
    entry = resources.files("convswap.models") / "weights" / packaged_name(network)
    try:
        content = entry.read_bytes()
    except OSError as error:
        raise wrong_file(str(entry), network, f"no file to read ({error.strerror})", "one") from error
    return unpack_weights(network, content, str(entry))


def packaged_name(network: Network) -> str:
    """Return the name of the file in models/weights."""
    return f"{network.name}.trained.npz"


def _parameters(network: Network) -> dict[str, Shape]:
    return {name: shape for placed in place(network) for name, shape in placed.parameters.items()}


def _expected_entries(network: Network) -> dict[str, tuple[type[np.generic], Shape]]:
    """Return the element type and the shape of every array in the file."""
    entries: dict[str, tuple[type[np.generic], Shape]] = {}
    four_bit_names = four_bit_parameters(network)
    for name, shape in _parameters(network).items():
        groups = groups_of(math.prod(shape))
        if name in four_bit_names:
            entries[f"{name}.codes"] = (np.uint8, (groups * GROUP // 2,))
            entries[f"{name}.scales"] = (np.float16, (groups,))
        else:
            entries[name] = (np.float16, shape)
    return entries


class _Archive:
    """Reads the entries of an open archive, and raises an error for a wrong entry."""

    def __init__(self, archive: zipfile.ZipFile, network: Network, title: str) -> None:
        self._archive = archive
        self._network = network
        self._title = title
        self._format: Any = None

    def made(self) -> dict[str, Any]:
        """Return the entry `made`, after checking its format and network."""
        array = self._load("made", LARGEST_MADE)
        try:
            made = json.loads(str(array))
        except ValueError as error:
            raise self._wrong("an entry made that is not JSON", f"format {FORMAT} in it") from error
        self._format = made.get("format") if isinstance(made, dict) else None
        if self._format not in READABLE:
            expected = " or ".join(map(str, READABLE))
            raise self._wrong(f"format {self._format!r:.60} in its entry made", f"format {expected}")
        if made.get("network") != self._network.name:
            raise self._wrong(f"weights of {made.get('network')!r:.60}", f"those of {self._network.name!r}")
        for key in ("data", "command"):
            if not isinstance(made.get(key), str):
                raise self._wrong(f"no {key} in its entry made", "the name of a data set and a command")
        return made

    def entry(self, name: str, kind: type[np.generic], shape: Shape) -> NDArray[Any]:
        """Return the array called `name`, after checking its element type and shape."""
        stored_kind, stored_shape = kind, shape
        if is_split := kind is np.float16 and self._format != 1:
            stored_kind, stored_shape = np.uint8, (2, math.prod(shape))
        array = self._load(name, math.prod(shape) * np.dtype(kind).itemsize)
        if array.dtype != stored_kind or array.shape != stored_shape:
            expected = f"{np.dtype(stored_kind).name} {list(stored_shape)}"
            raise self._wrong(f"{name} as {array.dtype} {list(array.shape)}", expected)
        if is_split:
            array = np.ascontiguousarray(array.T).view(kind).reshape(shape)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise self._wrong(f"{name} with numbers that are not finite", "finite ones")
        return array

    def _load(self, name: str, size: int) -> NDArray[Any]:
        """Return the entry called `name`, whose elements take at most `size` bytes."""
        member = f"{name}.npy"
        if member not in self._archive.namelist():
            raise self._wrong(f"no entry {name}", "one for each parameter, and made")
        found = self._archive.getinfo(member).file_size
        if found > size + LARGEST_HEADER:
            raise self._wrong(f"{found} bytes in its entry {name}", f"at most {size + LARGEST_HEADER}")
        with self._archive.open(member) as stream:
            content = b"".join(iter(lambda: stream.read(CHUNK), b""))
        try:
            return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
        except (ValueError, EOFError, MemoryError) as error:
            raise self._wrong(f"{name}, which is no array ({error})", "an array in NumPy's format") from error

    def _wrong(self, found: str, expected: str) -> ConvswapError:
        return wrong_file(self._title, self._network, found, expected)


def wrong_file(title: str, network: Network, found: str, expected: str) -> ConvswapError:
    """Return the error for a file of weights that cannot be used for `network`."""
    return ConvswapError(
        f"{title!r} does not hold the weights of {network.name}: found {found}, expected {expected}; get the "
        f"file again, or make it with `convswap train {network.name} -o FILE`"
    )
