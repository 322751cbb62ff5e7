"""Writes a file to start from: a slow kernel, or a rung of the ladder in the course's interface."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

from convswap.errors import ConvswapError, unknown_name
from convswap.output.files import check_writable, write_text
from convswap.tutorial.ladder.rung_texts import Page, read_pages

# The interfaces that have a template.
INTERFACES = ("course", "conv")
_TEMPLATES = Path(__file__).parent / "templates"
_FORWARD = (
    "__global__ void {bounds}forward(float* y, const float* x, const float* weights, int B, int M, int C, "
    "int H, int W,\n                        int K) {{\n  const int H_out = H - K + 1, W_out = W - K + 1;"
)
_KERNEL = re.compile(
    r"(?:template <[^>]*>\s*)?__global__ void (?:__launch_bounds__\((\w+)\) )?\w+\(Convolution conv\) \{"
)
# Expressions of a rung's code and their names in the lab. The course's interface has no bias, `conv.b[k]`.
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
_MAX_COLUMNS = 110


def new(path: str | os.PathLike[str], *, rung: str | None = None, what: str = "course") -> Path:
    """Write a kernel that computes a convolution to `path`, which must not exist; return the path.

    Args:
        path: the file. Its name should end in .cu, so that editors recognise it.
        rung: the name of a rung to copy, such as "ladder_04_shared_memory".
        what: "course" for the course's interface, "conv" for the whole op.

    Raises:
        ConvswapError: the file exists or cannot be written, or there is no such rung or interface.
    """
    if what not in INTERFACES:
        raise unknown_name("interface", what, INTERFACES)
    if rung is not None and what != "course":
        raise ConvswapError(f"a copy of {rung} has the course's interface: leave --what out")
    target = Path(path)
    text = template(what).replace("@NAME@", target.name) if rung is None else rung_copy(rung)
    if target.exists():
        raise ConvswapError(f"'{target}' is there already: choose another name, or remove it first")
    check_writable(target)
    write_text(target, text)
    return target


def template(interface: str) -> str:
    """Return a slow kernel of one of `INTERFACES`; "@NAME@" in it stands for the file's name."""
    return (_TEMPLATES / f"{interface}.cu").read_text(encoding="utf-8")


def rung_copy(name: str) -> str:
    """Return the text of a lab file with the kernel of the rung `name`.

    Raises:
        ConvswapError: there is no such rung, or it needs more than one kernel in one file.
    """
    pages = {page.name: page for page in read_pages()}
    if name not in pages:
        raise unknown_name("rung", name, pages)
    page = pages[name]
    if not page.launch:
        copyable = [other.name for other in pages.values() if other.launch]
        raise ConvswapError(
            f"{name} cannot be copied into a file of one kernel: {page.no_copy}; take one of "
            f"{', '.join(copyable)}"
        )
    constants = "".join(f"constexpr int {each} = {value};\n" for each, value in page.constants.items())
    if page.only:
        constants = (
            "// Sizes that the kernel is compiled for. For other layers, change them and the next line.\n"
            f"// only: {page.only}\n{constants}"
        )
    parts = [
        _head_comment(page),
        '#include "convswap/lab.h"\n',
        constants,
        f"// launch: {page.launch}\n",
        _kernel_code(page.code),
    ]
    return "\n".join(filter(None, parts))


def _head_comment(page: Page) -> str:
    paragraphs = [f"Rung {page.number} of the ladder. {page.title}", *page.idea.split("\n\n")]
    wrapped = [
        "\n".join(f"// {line}" for line in textwrap.wrap(each, _MAX_COLUMNS, break_long_words=False))
        for each in paragraphs
    ]
    return "\n//\n".join(wrapped) + "\n"


def _kernel_code(code: str) -> str:
    kernel = _KERNEL.search(code)
    assert kernel is not None  # every rung with a launch line has a kernel
    bounds = f"__launch_bounds__({kernel[1]}) " if kernel[1] else ""
    code = code[: kernel.start()] + _FORWARD.format(bounds=bounds) + code[kernel.end() :]
    for pattern, name in _NAMES.items():
        code = re.sub(rf"{pattern}(?!\w)" if pattern[-1].isalpha() else pattern, name, code)
    # Remove comments on sizes.h, which the copy does not include.
    code = re.sub(r"\n// [^\n]*\(sizes\.h\)\.\n", "\n", code)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"; +//", ";  //", code))
