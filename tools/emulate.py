"""Kernels on the CPU, thread by thread: builds a program of custom_op/emulation and runs it.

    python tools/emulate.py toeplitz                         # its kernels for every format, 20 problems
    python tools/emulate.py toeplitz --format Float16Pairs        # for one, compiled in a quarter of the time
    python tools/emulate.py few_channels --seeds 100:1100         # other problems, and more of them
    python tools/emulate.py sliced_k --every-tiling               # each problem by all tilings
    python tools/emulate.py ladder --rung ladder_05_flat_blocks

It takes g++ and CMake, nothing of CUDA. What was built stays in build/emulation: a second call compiles
what has changed. What such a run finds, and what it cannot, custom_op/emulation/cuda_emulation.h says.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "custom_op" / "emulation"
FOLDER = REPOSITORY / "build" / "emulation"
_OF_TENSOR_CORES = ("ScaledFloat16Pairs", "TwoScaledFloat16", "Float16Pairs", "Bfloat16Pairs")
_ELEMENTS = ("float", "Float16", "BFloat16")
# As in custom_op/emulation/CMakeLists.txt.
FORMATS = {
    "few_channels": _OF_TENSOR_CORES,
    "toeplitz": _OF_TENSOR_CORES,
    "implicit_gemm": _OF_TENSOR_CORES,
    "pointwise": _ELEMENTS,
    "many_channels": ("ScaledFloat16Pairs", "Float16Pairs", "Bfloat16Pairs"),
    "tiled": (*_ELEMENTS, "double"),
    "depthwise": _ELEMENTS,
    "sliding_rows": _ELEMENTS,
    "sliced_k": ("float", "Tf32Pairs", "Float16", "BFloat16"),
    "separable": _ELEMENTS,
    "row_windows": _ELEMENTS,
    "naive": _ELEMENTS,
}


class BuildError(Exception):
    """A program could not be built; the message is for people."""


def build(*names: str) -> list[Path]:
    """Compile programs of custom_op/emulation, what has changed of them, and return their paths.

    Raises BuildError with what the compiler says, or where there is no CMake.
    """
    # Beside this Python, as in a virtual environment, or anywhere.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        raise BuildError("cmake was not found; install it: pip install cmake")
    environment = {**os.environ, "PATH": path}
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        # Tests run side by side.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (FOLDER / "CMakeCache.txt").exists():
            generator = ["-G", "Ninja"] if shutil.which("ninja", path=path) else []
            _run([cmake, "-S", SOURCE, "-B", FOLDER, *generator], environment)
        jobs = str(os.cpu_count() or 1)
        _run([cmake, "--build", FOLDER, "--parallel", jobs, "--target", *names], environment)
    return [FOLDER / name for name in names]


def _run(command: list[str | Path], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    told = (done.stdout + done.stderr).splitlines()
    # Of the compiler, or of the linker, which says what is missing before it says that this is an error.
    first = next((i for i, line in enumerate(told) if "FAILED" in line or "rror:" in line), 0)
    raise BuildError("\n".join(told[first : first + 20]))


def seeds(text: str) -> list[str]:
    """Return FIRST and END of FIRST:END, for argparse."""
    first, colon, end = text.partition(":")
    if not (colon and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIRST:END, such as 0:20")
    return [first, end]


def main() -> int:
    """Build and run a program; the exit status is its own, or 2 where it could not be built."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("family", choices=[*FORMATS, "ladder"])
    formats = sorted({own for every in FORMATS.values() for own in every})
    parser.add_argument("--format", choices=formats, help="of the data (default: all that the family has)")
    parser.add_argument("--rung", help="the rung of the ladder, for `ladder`")
    parser.add_argument(
        "--seeds", type=seeds, default="0:20", metavar="FIRST:END", help="which problems (default: 0:20)"
    )
    parser.add_argument(
        "--every-tiling",
        action="store_true",
        help="each problem by all tilings that the family chooses among",
    )
    given = parser.parse_args()
    if (given.rung is not None) != (given.family == "ladder"):
        parser.error(
            "--rung: expected a rung, such as ladder_05_flat_blocks, for `ladder` and for nothing else"
        )
    if given.rung is not None and given.every_tiling:
        parser.error("--every-tiling: a rung of the ladder has one")
    if given.format is not None and given.format not in FORMATS.get(given.family, ()):
        has = ", ".join(FORMATS.get(given.family, ())) or "none"
        parser.error(f"--format {given.format}: the formats of {given.family} are: {has}")
    name = f"{given.family}_{given.format}" if given.format else given.family
    try:
        (program,) = build(name)
    except BuildError as error:
        print(f"{name} cannot be built: {error}", file=sys.stderr)
        return 2
    rung = [given.rung] if given.rung else []
    every = ["every-tiling"] if given.every_tiling else []
    return subprocess.run([program, *rung, *given.seeds, *every], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
