"""Make the ready-made kernels beside the library; `make` calls `python -m convswap.planning.ready_made`.

Ready-made kernels are compiled ahead of time: the generic kernels, which compute every problem, and the
kernels of the course's networks. A program that loads the library computes with them at once, also on
machines that cannot compile. $CONVSWAP_READY_MADE lists compute capabilities, as in "9.0;8.0". The default is
this machine's cards; "none" makes no kernels.

With --wheel FILE the pack is the one of a wheel: the generic kernels alone, for every card or those in
$CONVSWAP_READY_MADE. --algorithm and --layers restrict the kernels.
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
_POOL = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
# Epilogues of the first layers of the course's networks.
EPILOGUES: tuple[Mapping[str, Any], ...] = (
    {},
    {"activation": "Tanh", **_POOL},
    {"activation": "Relu", **_POOL},
)
# NVIDIA's generations from Turing on. SASS for 8.0 also runs on 8.6 and 8.9, and so on. Portable code (PTX)
# for the last one serves later generations.
ALL_CAPABILITIES = (75, 80, 90, 100, 120)
# Element type and precision of the problems.
TYPES = (("float32", "tf32"), ("float32", "ieee"), ("float16", "tf32"))
# Kernels that together compute every problem, with every element type, epilogue and layout, and the
# other ops.
GENERIC = (
    "cuda/naive/kernel.cuh",
    "cuda/tiled/kernel.cuh",
    "cuda/epilogue/kernel.cuh",
    "cuda/layout/kernel.cuh",
    "cuda/pool/kernel.cuh",
    "cuda/layer_norm/kernel.cuh",
    "cuda/mul/kernel.cuh",
)


def make(capabilities: Sequence[int], algorithm: str = "", layers: str | None = None) -> str:
    """Compile kernels for these compute capabilities (90 for 9.0), and write the pack beside the library.

    `algorithm` restricts the generic kernels to one algorithm, and `layers`, a regular expression, the
    course's layers to those whose name matches. Returns a line for the user. Raises ConvswapError if there is
    no compiler, the file cannot be written, or nothing has that name.
    """
    path = library_path().with_name(FILE_NAME)
    if not capabilities:
        path.unlink(missing_ok=True)
        return "no ready-made kernels beside the library: there is no card, and none was named"
    generic, course = _generic_kernels(algorithm), suite_layers("course", layers)
    wanted = [
        PackedKernel(name, capability)
        for capability in capabilities
        for name in itertools.chain(generic, _kernels_of(course, capability))
    ]
    return f"{_write(wanted, path)}, beside the library"


def make_for_wheel(path: Path, capabilities: Sequence[int] = ALL_CAPABILITIES, algorithm: str = "") -> str:
    """Compile the generic kernels, or those of one algorithm, and write the pack of a wheel to `path`.

    The kernels of the last capability are also portable to newer cards. Returns and raises as `make`.
    """
    names = _generic_kernels(algorithm)
    wanted = [PackedKernel(name, capability) for capability in capabilities for name in names]
    wanted += [PackedKernel(name, capabilities[-1], is_portable=True) for name in names]
    return f"{_write(wanted, path)}, in {path}"


@dataclass(frozen=True)
class PackedKernel:
    """A kernel instance of a pack, by name, for a compute capability or portable to newer cards too."""

    name: str
    capability: int
    is_portable: bool = False


def _write(wanted: Sequence[PackedKernel], path: Path) -> str:
    why_not = _native.kernel_compiler()["why_not"]
    if why_not:
        raise ConvswapError(why_not)
    writer = _native.PackWriter()

    def add(kernel: PackedKernel) -> None:
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


def capabilities_from(text: str | None) -> list[int]:
    """Return [90, 80] for "9.0;8.0", [] for "none", and the cards of this machine for None and "".

    Raises ConvswapError for a text that is not a list of compute capabilities.
    """
    if not text:
        return list(dict.fromkeys(int(card["compute_capability"]) for card in cuda_cards(_native)))
    if text == "none":
        return []
    try:
        capabilities = [round(10 * float(part)) for part in text.split(";")]
    except ValueError:
        capabilities = []
    if not capabilities or not all(75 <= capability < 200 for capability in capabilities):
        raise ConvswapError(
            f'{VARIABLE} is {text!r}: expected compute capabilities such as "9.0;8.0", or none'
        )
    return list(dict.fromkeys(capabilities))


def _generic_kernels(algorithm: str) -> list[str]:
    """Return the names of the generic kernels of an algorithm; of all algorithms for ""."""
    known = [
        name
        for family in _native.kernel_families()
        if family["header"] in GENERIC
        for name in family["instances"]
    ]
    selected = [name for name in known if algorithm in ("", name.partition("::")[0])]
    if not selected:
        algorithms = ", ".join(dict.fromkeys(name.partition("::")[0] for name in known))
        raise ConvswapError(f"{algorithm} has no generic kernels: expected one of {algorithms}")
    return selected


def _kernels_of(layers: Sequence[SuiteLayer], capability: int) -> Iterator[str]:
    """Yield the names of the layers' kernels, for each of `EPILOGUES`."""
    for layer in layers:
        for batch, (element_type, precision), epilogue in itertools.product(BATCHES, TYPES, EPILOGUES):
            problem = _native.Problem(
                layer.input_shape(batch), layer.weight_shape, False, element_type, precision, **epilogue
            )
            yield from _native.kernels_of(problem, "cuda", compute_capability=capability)


def main() -> int:
    """Compile the kernels that the command line and the environment ask for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="write the pack of a wheel to FILE")
    parser.add_argument(
        "--algorithm", default="", metavar="A", help="only the generic kernels of this algorithm"
    )
    parser.add_argument(
        "--layers",
        metavar="REGEX",
        help="only the course's layers whose name matches; has no effect on a wheel",
    )
    options = parser.parse_args()
    variable = os.environ.get(VARIABLE)
    try:
        capabilities = capabilities_from(variable)
    except ConvswapError as error:
        print(f"convswap: {error}", file=sys.stderr)
        return 2
    try:
        if options.wheel is None:
            line = make(capabilities, options.algorithm, options.layers)
        else:
            for_wheel = (variable and capabilities) or ALL_CAPABILITIES
            line = make_for_wheel(options.wheel, for_wheel, options.algorithm)
        print(f"convswap: {line}")
    except ConvswapError as error:
        print(f"convswap: no ready-made kernels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
