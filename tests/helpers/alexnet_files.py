"""Writes files like `bvlc_alexnet.npy`: a pickled dict of layer names and [weights, bias]."""

from __future__ import annotations

import io
import struct

import numpy as np

Layers = dict[str, list[np.ndarray]]

# Shapes in the published order: (height, width, in, out) of convolutions, (in, out) of dense layers.
SHAPES = {
    "conv1": [(11, 11, 3, 96), (96,)],
    "conv2": [(5, 5, 48, 256), (256,)],
    "conv3": [(3, 3, 256, 384), (384,)],
    "conv4": [(3, 3, 192, 384), (384,)],
    "conv5": [(3, 3, 192, 256), (256,)],
    "fc6": [(9216, 4096), (4096,)],
    "fc7": [(4096, 4096), (4096,)],
    "fc8": [(4096, 1000), (1000,)],
}


def random_layers() -> Layers:
    """Return float16 arrays of AlexNet's shapes that keep values near 1 from layer to layer."""
    random = np.random.default_rng(12)
    layers = {}
    for name, (weight_shape, bias_shape) in SHAPES.items():
        deviation = (2.0 / np.prod(weight_shape[:-1])) ** 0.5
        weight = random.random(weight_shape, dtype=np.float32) * 2 - 1
        bias = random.random(bias_shape, dtype=np.float32) - 0.5
        layers[name] = [(weight * (deviation * 3**0.5)).astype(np.float16), bias.astype(np.float16)]
    return layers


def npy_of_this_numpy(value: object) -> bytes:
    """Return the .npy file that this NumPy writes for a pickled object."""
    stream = io.BytesIO()
    np.save(stream, np.array(value, dtype=object), allow_pickle=True)
    return stream.getvalue()


def npy_of_python_2(layers: Layers) -> bytes:
    """Return the .npy file that NumPy wrote under Python 2: protocol 2, with one type for text and bytes."""
    items = b"".join(
        _text(name) + b"](" + b"".join(map(_array, arrays)) + b"e" for name, arrays in layers.items()
    )
    content = b"]}(" + items + b"ua"
    return npy(b"\x80\x02" + _reconstructed((), "O8", "|", 63, False, content) + b".")


def npy(pickle: bytes) -> bytes:
    """Return a .npy file of an array of one object with the given pickle."""
    stream = io.BytesIO()
    header = {"descr": "|O", "fortran_order": False, "shape": ()}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + pickle


def _array(array: np.ndarray) -> bytes:
    fortran = not array.flags.c_contiguous
    data = array.tobytes("F" if fortran else "C")
    code = array.dtype.str
    return _reconstructed(
        array.shape, code[1:], code[0], 0, fortran, b"T" + struct.pack("<I", len(data)) + data
    )


def _reconstructed(
    shape: tuple[int, ...], code: str, byte_order: str, flags: int, fortran: bool, content: bytes
) -> bytes:
    start = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nK\x00\x85U\x01b\x87Rq\x02"
    sizes = b"(" + b"".join(b"J" + struct.pack("<i", size) for size in shape) + b"t"
    kind = b"cnumpy\ndtype\n" + _text(code) + b"K\x00K\x01\x87R"
    fields = b"(K\x03" + _text(byte_order) + b"NNN" + b"J\xff\xff\xff\xff" * 2 + bytes([75, flags]) + b"tb"
    return start + b"(K\x01" + sizes + kind + fields + (b"\x88" if fortran else b"\x89") + content + b"tb"


def _text(text: str) -> bytes:
    return b"U" + bytes([len(text)]) + text.encode()
