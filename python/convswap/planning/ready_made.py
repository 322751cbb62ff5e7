"""Make the ready-made kernels beside the library; `make` calls `python -m convswap.planning.ready_made`.

With --wheel FILE it makes those that a wheel carries: the generic ones, for every card or those named below.
--algorithm and --layers take less of both.

They are the generic kernels, which compute everything, and what the course's networks need. So a program that
just loads the library computes at once on these cards, also where nothing can be compiled.
$CONVSWAP_READY_MADE names cards by their compute capabilities, as in "9.0;8.0"; by default they are this
machine's. "none" makes none.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convswap import _native
from convswap.errors import ConvswapError
from convswap.runtime.cards import cuda_cards
from convswap.runtime.library import library_path
from convswap.timing.suites import SuiteLayer, suite_layers

VARIABLE = "CONVSWAP_READY_MADE"
FILE_NAME = "ready_made.pack"
BATCHES = (1, 8, 64, 512, 10_000)
# What follows the first layers of the course's networks, whose fused Convs take it in.
_POOL = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
FOLLOWS: tuple[Mapping[str, Any], ...] = (
    {},
    {"activation": "Tanh", **_POOL},
    {"activation": "Relu", **_POOL},
)
# NVIDIA's generations from Turing on: code for 8.0 runs on 8.6 and 8.9 too, and so on. What is portable of
# the last serves those to come.
EVERY_CARD = (75, 80, 90, 100, 120)
# A problem's element type and precision.
TYPES = (("float32", "tf32"), ("float32", "ieee"), ("float16", "tf32"))
# What computes every problem, of every type, with what follows it.
GENERIC = ("cuda/naive/kernel.cuh", "cuda/tiled/kernel.cuh", "cuda/epilogue/kernel.cuh")


def make(capabilities: Sequence[int], algorithm: str = "", layers: str | None = None) -> str:
    """Compile the kernels for cards of these compute capabilities, 90 for 9.0, and write them to the pack.

    Of the generic ones those of one algorithm alone where it is named, and of the course's layers those whose
    name matches `layers`, a regular expression. Returns a line about it. Raises ConvswapError where there is
    no compiler, the file cannot be written, or nothing has that name.
    """
    path = library_path().with_name(FILE_NAME)
    if not capabilities:
        path.unlink(missing_ok=True)
        return "no ready-made kernels beside the library: there is no card, and none was named"
    generic, course = _generic_kernels(algorithm), suite_layers("course", layers)
    wanted = [
        Kernel(name, capability)
        for capability in capabilities
        for name in itertools.chain(generic, _kernels_of(course, capability))
    ]
    return f"{_write(wanted, path)}, beside the library"


def make_for_wheel(path: Path, capabilities: Sequence[int] = EVERY_CARD, algorithm: str = "") -> str:
    """Compile the generic kernels, or those of one algorithm, and write them to `path`; as `make` else.

    The last capability's are portable to newer cards too.
    """
    names = _generic_kernels(algorithm)
    wanted = [Kernel(name, capability) for capability in capabilities for name in names]
    wanted += [Kernel(name, capabilities[-1], is_portable=True) for name in names]
    return f"{_write(wanted, path)}, in {path}"


@dataclass(frozen=True)
class Kernel:
    """A kernel by its name, for cards of a compute capability, or portable to newer ones."""

    name: str
    capability: int
    is_portable: bool = False


def _write(wanted: Sequence[Kernel], path: Path) -> str:
    why_not = _native.kernel_compiler()["why_not"]
    if why_not:
        raise ConvswapError(why_not)
    writer = _native.PackWriter()

    def add(kernel: Kernel) -> None:
        writer.add(kernel.name, kernel.capability, is_portable=kernel.is_portable)

    kernels = dict.fromkeys(wanted)
    try:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [pool.submit(add, kernel) for kernel in kernels]:
                done.result()
        writer.write(os.fspath(path))
    except RuntimeError as error:
        raise ConvswapError(" ".join(str(error).split())) from error
    capabilities = dict.fromkeys(kernel.capability for kernel in kernels)
    cards = ", ".join(f"{capability / 10:.1f}" for capability in capabilities)
    size = path.stat().st_size / 1e6
    return f"{len(kernels)} ready-made kernels for compute capability {cards}, {size:.1f} MB"


def asked_for(text: str | None) -> list[int]:
    """Return [90, 80] for "9.0;8.0", [] for "none", and the cards of this machine for None and "".

    Raises ConvswapError for what is no list of compute capabilities.
    """
    if not text:
        return list(dict.fromkeys(int(card["compute_capability"]) for card in cuda_cards(_native)))
    if text == "none":
        return []
    try:
        found = [round(10 * float(part)) for part in text.split(";")]
    except ValueError:
        found = []
    if not found or not all(75 <= capability < 200 for capability in found):
        raise ConvswapError(
            f'{VARIABLE} is {text!r}: expected compute capabilities such as "9.0;8.0", or none'
        )
    return list(dict.fromkeys(found))


def _generic_kernels(algorithm: str) -> list[str]:
    """Return the generic kernels, all for "", else those of the algorithm."""
    known = [
        name
        for family in _native.kernel_families()
        if family["header"] in GENERIC
        for name in family["instances"]
    ]
    found = [name for name in known if algorithm in ("", name.partition("::")[0])]
    if not found:
        algorithms = ", ".join(dict.fromkeys(name.partition("::")[0] for name in known))
        raise ConvswapError(f"{algorithm} has no generic kernels: expected one of {algorithms}")
    return found


def _kernels_of(layers: Sequence[SuiteLayer], capability: int) -> Iterator[str]:
    """Yield the kernels of the layers, alone and with what follows them."""
    for layer in layers:
        for batch, (element_type, precision), follows in itertools.product(BATCHES, TYPES, FOLLOWS):
            problem = _native.Problem(
                layer.input_shape(batch), layer.weight_shape, False, element_type, precision, **follows
            )
            yield from _native.kernels_of(problem, "cuda", compute_capability=capability)


def main() -> int:
    """Make what the command line and the environment ask for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--wheel", type=Path, metavar="FILE", help="write the kernels that a wheel carries there"
    )
    parser.add_argument(
        "--algorithm", default="", metavar="A", help="of the generic kernels those of one algorithm alone"
    )
    parser.add_argument(
        "--layers", metavar="REGEX", help="of the course's layers those whose name matches; not for a wheel"
    )
    options = parser.parse_args()
    named = os.environ.get(VARIABLE)
    try:
        capabilities = asked_for(named)
    except ConvswapError as error:
        print(f"convswap: {error}", file=sys.stderr)
        return 2
    try:
        if options.wheel is None:
            told = make(capabilities, options.algorithm, options.layers)
        else:
            told = make_for_wheel(options.wheel, (named and capabilities) or EVERY_CARD, options.algorithm)
        print(f"convswap: {told}")
    except ConvswapError as error:
        print(f"convswap: no ready-made kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
