"""The kernels that lie ready beside the library: `python -m convswap.ready_made` makes them, as `make` does.

They are the generic kernels, which compute everything, and what the course's networks need. So a program that
just loads the library computes at once on these cards, also where nothing can be compiled.
$CONVSWAP_READY_MADE names cards by their compute capabilities, as in "9.0;8.0"; by default they are this
machine's. "none" makes none.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
from collections.abc import Iterator, Sequence

from convswap import _native
from convswap.cards import cuda_cards
from convswap.errors import ConvswapError
from convswap.library import library_path
from convswap.suites import SUITES

VARIABLE = "CONVSWAP_READY_MADE"
FILE_NAME = "ready_made.pack"
BATCHES = (1, 8, 64, 512, 10_000)
# A problem's element type and precision.
TYPES = (("float32", "tf32"), ("float32", "ieee"), ("float16", "tf32"))
# What computes every problem, of every type, with what follows it.
GENERIC = ("cuda/naive/kernel.cuh", "cuda/tiled/kernel.cuh", "cuda/epilogue/kernel.cuh")


def make(capabilities: Sequence[int]) -> str:
    """Compile the kernels for cards of these compute capabilities, 90 for 9.0, and write them to the pack.

    Returns a line about it. Raises ConvswapError where there is no compiler, or the file cannot be written.
    """
    path = library_path().with_name(FILE_NAME)
    if not capabilities:
        path.unlink(missing_ok=True)
        return "no kernels lie ready beside the library: there is no card, and none was named"
    why_not = _native.kernel_compiler()["why_not"]
    if why_not:
        raise ConvswapError(why_not)
    writer = _native.PackWriter()
    wanted = dict.fromkeys(kernel for capability in capabilities for kernel in _kernels(capability))
    try:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in [pool.submit(writer.add, *kernel) for kernel in wanted]:
                done.result()
        writer.write(os.fspath(path))
    except RuntimeError as error:
        raise ConvswapError(" ".join(str(error).split())) from error
    cards = ", ".join(f"{capability / 10:.1f}" for capability in capabilities)
    size = path.stat().st_size / 1e6
    return f"{len(wanted)} kernels for compute capability {cards} lie ready beside the library, {size:.1f} MB"


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


def _kernels(capability: int) -> Iterator[tuple[str, int]]:
    for family in _native.kernel_families():
        if family["header"] in GENERIC:
            yield from ((instance, capability) for instance in family["instances"])
    for layer in SUITES["course"]:
        for batch in BATCHES:
            for element_type, precision in TYPES:
                problem = _native.Problem(
                    layer.input_shape(batch), layer.weight_shape, False, element_type, precision
                )
                for name in _native.kernels_of(problem, "cuda", compute_capability=capability):
                    yield name, capability


def main() -> int:
    """Make what the environment asks for; return the exit status."""
    try:
        capabilities = asked_for(os.environ.get(VARIABLE))
    except ConvswapError as error:
        print(f"convswap: {error}", file=sys.stderr)
        return 2
    try:
        print(f"convswap: {make(capabilities)}")
    except ConvswapError as error:
        print(f"convswap: no kernels lie ready beside the library: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
