"""Run kernels on the CPU, thread by thread, with a program of custom_op/emulation.

    python tools/emulate.py toeplitz                              # every format, 20 problems
    python tools/emulate.py toeplitz --format Float16Pairs        # one format, a quarter of the compile time
    python tools/emulate.py few_channels --seeds 100:1100         # more and other problems
    python tools/emulate.py sliced_k --every-tiling               # each problem with all tilings
    python tools/emulate.py ladder --rung ladder_05_flat_blocks

Needs g++ and CMake, but not CUDA. Built programs stay in build/emulation; later calls compile only changes.
custom_op/emulation/cuda_emulation.h says which errors a run detects and which it cannot.
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
_TENSOR_CORE_FORMATS = ("ScaledFloat16Pairs", "TwoScaledFloat16", "Float16Pairs", "Bfloat16Pairs")
_ELEMENT_TYPES = ("float", "Float16", "BFloat16")
# As in custom_op/emulation/CMakeLists.txt.
FORMATS = {
    "few_channels": _TENSOR_CORE_FORMATS,
    "toeplitz": _TENSOR_CORE_FORMATS,
    "implicit_gemm": _TENSOR_CORE_FORMATS,
    "pointwise": _ELEMENT_TYPES,
    "many_channels": ("ScaledFloat16Pairs", "Float16Pairs", "Bfloat16Pairs"),
    "channels_last": (*_ELEMENT_TYPES, "Int8", "UInt8"),
    "channels_last_depthwise": _ELEMENT_TYPES,
    "channels_last_mma": (*_ELEMENT_TYPES, "Int8", "UInt8"),
    "tiled": (*_ELEMENT_TYPES, "double"),
    "depthwise": _ELEMENT_TYPES,
    "sliding_rows": _ELEMENT_TYPES,
    "sliced_k": ("float", "Tf32Pairs", "Float16", "BFloat16"),
    "separable": _ELEMENT_TYPES,
    "row_windows": _ELEMENT_TYPES,
    "quantised": ("Int8", "UInt8"),
    "naive": _ELEMENT_TYPES,
}


class BuildError(Exception):
    """A program could not be built; the message is for users."""


def build(*names: str) -> list[Path]:
    """Compile changed programs of custom_op/emulation, and return their paths.

    Raises BuildError with the compiler's messages, or if CMake is missing.
    """
    # CMake and Ninja in the folder of this Python (a virtual environment) come first.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        raise BuildError("cmake was not found; install it: pip install cmake")
    environment = {**os.environ, "PATH": path}
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        # Tests run in parallel.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (FOLDER / "CMakeCache.txt").exists():
            generator = ["-G", "Ninja"] if shutil.which("ninja", path=path) else []
            _run([cmake, "-S", SOURCE, "-B", FOLDER, *generator], environment)
        jobs = str(os.cpu_count() or 1)
        _run([cmake, "--build", FOLDER, "--parallel", jobs, "--target", *names], environment)
    return [FOLDER / name for name in names]


def _run(command: list[str | Path], environment: dict[str, str]) -> None:
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if completed.returncode == 0:
        return
    output = (completed.stdout + completed.stderr).splitlines()
    # First error of the compiler or linker. The linker names a missing symbol before it reports an error.
    first = next((i for i, line in enumerate(output) if "FAILED" in line or "rror:" in line), 0)
    raise BuildError("\n".join(output[first : first + 20]))


def seeds(text: str) -> list[str]:
    """Return FIRST and END of FIRST:END, for argparse."""
    first, colon, end = text.partition(":")
    if not (colon and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected FIRST:END, such as 0:20")
    return [first, end]


def main() -> int:
    """Build and run a program; return its exit status, or 2 if it could not be built."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("family", choices=[*FORMATS, "ladder"])
    formats = sorted({name for names in FORMATS.values() for name in names})
    parser.add_argument(
        "--format", choices=formats, help="element type or kernel format (default: all of the family)"
    )
    parser.add_argument("--rung", help="name of the rung, for `ladder`")
    parser.add_argument(
        "--seeds",
        type=seeds,
        default="0:20",
        metavar="FIRST:END",
        help="range of seeds, a problem each (default: 0:20)",
    )
    parser.add_argument(
        "--every-tiling",
        action="store_true",
        help="run each problem with all tilings of the family",
    )
    options = parser.parse_args()
    if (options.rung is not None) != (options.family == "ladder"):
        parser.error(
            "--rung: expected a rung, such as ladder_05_flat_blocks, for `ladder` and for nothing else"
        )
    if options.rung is not None and options.every_tiling:
        parser.error("--every-tiling: a rung of the ladder has one tiling")
    if options.format is not None and options.format not in FORMATS.get(options.family, ()):
        family_formats = ", ".join(FORMATS.get(options.family, ())) or "none"
        parser.error(f"--format {options.format}: the formats of {options.family} are: {family_formats}")
    name = f"{options.family}_{options.format}" if options.format else options.family
    try:
        (program,) = build(name)
    except BuildError as error:
        print(f"{name} cannot be built: {error}", file=sys.stderr)
        return 2
    rung = [options.rung] if options.rung else []
    every_tiling = ["every-tiling"] if options.every_tiling else []
    return subprocess.run([program, *rung, *options.seeds, *every_tiling], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
