"""A rung of the ladder as a file of the lab: its own text, in the course's interface.

The text is the rung's file, which the package has. What differs is how a kernel gets its sizes: `conv.width`
of a rung is `W` here, and what its template takes are constants at the head of the file, with a line that
says which convolutions they are for.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from convswap.errors import ConvswapError, unknown_name
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
