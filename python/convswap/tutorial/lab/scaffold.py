"""Writes a file to begin with: a slow kernel, or a rung of the ladder in the course's interface."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from convswap.errors import ConvswapError, unknown_name
from convswap.output.files import check_writable, write_text
from convswap.runtime import library
from convswap.tutorial.ladder.rung_texts import Page, read_pages

_FOLDER = library.INSTALLED / "rungs"
_FORWARD = (
    "__global__ void {bounds}forward(float* y, const float* x, const float* weights, int B, int M, int C, "
    "int H, int W,\n                        int K) {{\n  const int H_out = H - K + 1, W_out = W - K + 1;"
)
_KERNEL = re.compile(
    r"(?:template <[^>]*>\s*)?__global__ void (?:__launch_bounds__\((\w+)\) )?\w+\(Convolution conv\) \{"
)
# What a rung calls a size, and its name here. `conv.b[k]`, the bias, the course's interface has not.
_NAMES = {
    r"conv\.batch": "B",
    r"conv\.filters": "M",
    r"conv\.channels": "C",
    r"conv\.height": "H",
    r"conv\.width": "W",
    r"conv\.filter_(?:height|width)": "K",
    r"conv\.out_height": "H_out",
    r"conv\.out_width": "W_out",
    r"conv\.x": "x",
    r"conv\.w": "weights",
    r"conv\.y": "y",
    r" \+ conv\.b\[[^\]]*\]": "",
    r"conv\.b\[[^\]]*\]": "0.0f",
}
_WIDTH = 110


def new(path: str | os.PathLike[str], *, rung: str | None = None, what: str = "course") -> Path:
    """Write a kernel that computes a convolution to `path`, which must not be there; return it.

    Args:
        path: the file, whose name should end in .cu for the sake of editors.
        rung: an algorithm's name such as "ladder_04_shared_memory", which the file is a copy of.
        what: "course" for the course's interface, "conv" for the whole op.

    Raises:
        ConvswapError: the file is there or cannot be written, or there is no such rung or interface.
    """
    if what not in BY_INTERFACE:
        raise unknown_name("interface", what, BY_INTERFACE)
    if rung is not None and what != "course":
        raise ConvswapError(f"a copy of {rung} has the course's interface: leave --what out")
    target = Path(path)
    text = BY_INTERFACE[what].replace("@NAME@", target.name) if rung is None else rung_copy(rung)
    if target.exists():
        raise ConvswapError(f"'{target}' is there already: choose another name, or remove it first")
    check_writable(target)
    write_text(target, text)
    return target


@dataclass(frozen=True)
class _Copy:
    """How a rung is started, by the launch line, and what its template takes, by the name of a constant."""

    launch: str
    constants: Mapping[str, int] = field(default_factory=dict)
    only: str = ""


_WHOLE_IMAGE = "shared(4 * C * (H * W + K * K))"
_IMAGE_AND_FILTERS = "shared(4 * C * (H * W + M * K * K))"
_OUTPUTS = "grid(ceil_div(B * M * H_out * W_out, 256)) block(256)"
# Of ece408-2017-high, with which the ladder begins.
_LAYER = {"kChannels": 1, "kSize": 28, "kFilters": 50, "kFilter": 5}

_COPIES: Mapping[str, _Copy] = {
    "ladder_02_global_adds": _Copy(_OUTPUTS),
    "ladder_03_register_sum": _Copy(_OUTPUTS),
    "ladder_04_shared_memory": _Copy(f"grid(B, M) block(32, 32) {_WHOLE_IMAGE}"),
    "ladder_05_flat_blocks": _Copy(f"grid(B, M) block(1024) {_WHOLE_IMAGE}"),
    "ladder_06_block_per_image": _Copy(f"grid(B) block(1024) {_WHOLE_IMAGE}"),
    "ladder_07_array_of_outputs": _Copy(
        f"grid(B) block(192) {_IMAGE_AND_FILTERS}", {"kFilters": 50, "kArrayThreads": 192}, "M == 50"
    ),
    "ladder_08_unrolled": _Copy(
        f"grid(B) block(192) {_IMAGE_AND_FILTERS}",
        {"kFilters": 50, "kFilter": 5, "kUnrolledThreads": 192},
        "M == 50 && K == 5",
    ),
    "ladder_09_constants": _Copy(
        f"grid(B) block(192) {_IMAGE_AND_FILTERS}",
        {**_LAYER, "kConstantsThreads": 192},
        "C == 1 && H == 28 && W == 28 && M == 50 && K == 5",
    ),
    "ladder_12_fused_im2col": _Copy(
        "grid(ceil_div(B * H_out * W_out, 16), ceil_div(M, 16)) block(16, 16) shared(2 * 4 * 16 * 16)",
        {"kFusedTile": 16},
    ),
}

_NOT_COPIED = {
    "ladder_01_loops": "it runs on the processor",
    "ladder_10_constant_memory": "it has the host fill constant memory first, which a launch line cannot say",
    "ladder_11_im2col": "it has two kernels, with memory of their own between them",
    "ladder_13_winograd": "it has two kernels, with memory of their own between them",
    "ladder_14_tensor_cores": "its instructions are in other files of the library; read "
    "custom_op/cuda/primitives/tensor_core.cuh",
    "ladder_15_automatic": "it is a folder of files, custom_op/cuda/toeplitz",
    "ladder_16_fused": "it is a folder of files, custom_op/cuda/toeplitz",
}


def copied_rungs() -> tuple[str, ...]:
    """Return the rungs that a file can be begun from."""
    return tuple(_COPIES)


def rung_copy(name: str, folder: Path = _FOLDER) -> str:
    """Return the text of a file of the lab that computes as the rung `name` does.

    Raises:
        ConvswapError: there is no such rung, or it does not fit into one kernel of one file.
    """
    pages = {page.name: page for page in read_pages(folder)}
    if name not in pages:
        raise unknown_name("rung", name, pages)
    if name not in _COPIES:
        raise ConvswapError(
            f"{name} cannot be copied into a file of one kernel: {_NOT_COPIED[name]}; take one of "
            f"{', '.join(_COPIES)}"
        )
    return _text(pages[name], _COPIES[name])


def _text(page: Page, copy: _Copy) -> str:
    constants = "".join(f"constexpr int {name} = {value};\n" for name, value in copy.constants.items())
    if copy.only:
        constants = (
            "// What the kernel is compiled for. For other layers, change the numbers and the next line.\n"
            f"// only: {copy.only}\n{constants}"
        )
    parts = [
        _head(page),
        '#include "convswap/lab.h"\n',
        constants,
        f"// launch: {copy.launch}\n",
        _code(page.code),
    ]
    return "\n".join(filter(None, parts))


def _head(page: Page) -> str:
    paragraphs = [f"Rung {page.number} of the ladder. {page.title}", *page.idea.split("\n\n")]
    wrapped = [
        "\n".join(f"// {line}" for line in textwrap.wrap(each, _WIDTH, break_long_words=False))
        for each in paragraphs
    ]
    return "\n//\n".join(wrapped) + "\n"


def _code(code: str) -> str:
    kernel = _KERNEL.search(code)
    assert kernel is not None  # every rung that is copied has one
    bounds = f"__launch_bounds__({kernel[1]}) " if kernel[1] else ""
    code = code[: kernel.start()] + _FORWARD.format(bounds=bounds) + code[kernel.end() :]
    for pattern, name in _NAMES.items():
        code = re.sub(rf"{pattern}(?!\w)" if pattern[-1].isalpha() else pattern, name, code)
    # Remarks on a file that the copy does not need.
    code = re.sub(r"\n// [^\n]*\(sizes\.h\)\.\n", "\n", code)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"; +//", ";  //", code))


COURSE = """\
// A convolution, correct and slow: a thread for each output, which reads everything from global memory.
//
//   y[n][m][p][q] = sum over c, r, s of x[n][c][p + r][q + s] * k[m][c][r][s]
//
// Of each array the last index is the fastest. x has B images of C channels, H rows and W columns; k has M
// filters of C channels and K x K taps; y has B images of M channels, H_out = H - K + 1 rows and
// W_out = W - K + 1 columns.
//
//   convswap lab run @NAME@        compile, check and time it
//   convswap lab watch @NAME@      again on each save

#include "convswap/lab.h"

// How the kernel is started: whole numbers, + - * / %, ceil_div(a, b), min(a, b), max(a, b) of the sizes
// B M C H W K H_out W_out; grid and block have up to three numbers, shared is in bytes.
// launch: grid(B, M, ceil_div(H_out, 16) * ceil_div(W_out, 16)) block(16, 16) shared(0)

__global__ void forward(float* y, const float* x, const float* k, int B, int M, int C, int H, int W, int K) {
  const int H_out = H - K + 1, W_out = W - K + 1;
  const int n = blockIdx.x, m = blockIdx.y;
  // A block computes a tile of 16 x 16 outputs; the third index of the grid counts the tiles of an image.
  const int tiles_across = convswap::ceil_div(W_out, 16);
  const int p = blockIdx.z / tiles_across * 16 + threadIdx.y;
  const int q = blockIdx.z % tiles_across * 16 + threadIdx.x;
  // The last tiles have threads for which there is nothing left.
  if (p >= H_out || q >= W_out) return;

  float sum = 0.0f;
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < K; ++r) {
      for (int s = 0; s < K; ++s) {
        sum += x[((n * C + c) * H + p + r) * W + q + s] * k[((m * C + c) * K + r) * K + s];
      }
    }
  }
  y[((n * M + m) * H_out + p) * W_out + q] = sum;
}
"""

CONV = """\
// The whole op, correct and slow: stride, padding, dilation, groups and bias, a thread for each output.
//
// `conv` has every size; "convswap/lab.h" says what they are called, and what is computed.
//
//   convswap lab run @NAME@        compile, check and time it
//   convswap lab watch @NAME@      again on each save

#include "convswap/lab.h"

// interface: conv
// How the kernel is started: whole numbers, + - * / %, ceil_div(a, b), min(a, b), max(a, b) of the sizes
// B M C H W R S G H_out W_out; grid and block have up to three numbers, shared is in bytes.
// launch: grid(ceil_div(B * M * H_out * W_out, 256)) block(256) shared(0)

__global__ void forward(float* y, const float* x, const float* w, const float* b, convswap::Conv conv) {
  const int outputs = conv.batch * conv.filters * conv.out_height * conv.out_width;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  // The last block has threads for which there is nothing left.
  if (i >= outputs) return;
  const int q = i % conv.out_width;
  const int p = i / conv.out_width % conv.out_height;
  const int m = i / (conv.out_width * conv.out_height) % conv.filters;
  const int n = i / (conv.out_width * conv.out_height * conv.filters);
  const int channels = conv.channels / conv.groups;
  const int first_channel = m / (conv.filters / conv.groups) * channels;

  // b is null where there is no bias.
  float sum = b == nullptr ? 0.0f : b[m];
  for (int c = 0; c < channels; ++c) {
    for (int r = 0; r < conv.filter_height; ++r) {
      const int row = p * conv.stride_h - conv.pad_top + r * conv.dilation_h;
      if (row < 0 || row >= conv.height) continue;
      for (int s = 0; s < conv.filter_width; ++s) {
        const int column = q * conv.stride_w - conv.pad_left + s * conv.dilation_w;
        if (column < 0 || column >= conv.width) continue;
        const int pixel = ((n * conv.channels + first_channel + c) * conv.height + row) * conv.width + column;
        const int tap = ((m * channels + c) * conv.filter_height + r) * conv.filter_width + s;
        sum += x[pixel] * w[tap];
      }
    }
  }
  y[i] = sum;
}
"""

BY_INTERFACE = {"course": COURSE, "conv": CONV}
