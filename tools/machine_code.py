"""Compare the machine code of all kernels between two versions of the sources.

    python tools/machine_code.py record before.json        # with one version of convswap
    python tools/machine_code.py record after.json         # with another version
    python tools/machine_code.py compare before.json after.json

`record` compiles, with the installed NVRTC, the kernels of tests/op/test_kernels_compile.py and one kernel of
each rung. With --every CAPABILITY it compiles all instances of all families, which takes an hour.
Kernels are paired by family and position in the family's list. Instructions, constants and registers are
compared; names and symbols are not. Needs no card. `compare` exits with 1 if a kernel differs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from convswap import _native
from elftools.elf.elffile import ELFFile
from rich.progress import track

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "op"))

INSTRUCTION_BYTES = 16


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def properties_of(cubin: bytes) -> dict[str, Any]:
    """Return hashes and counts of the code of one kernel and the functions that it calls."""
    sections = list(ELFFile(io.BytesIO(cubin)).iter_sections())
    code = [section for section in sections if section.name.startswith(".text.")]
    words = [
        text[start : start + INSTRUCTION_BYTES]
        for text in (section.data() for section in code)
        for start in range(0, len(text), INSTRUCTION_BYTES)
    ]
    constants = [section.data() for section in sections if section.name.startswith(".nv.constant")]
    return {
        "text": _hash(b"".join(words)),
        "in any order": _hash(b"".join(sorted(words))),
        "instructions": len(words),
        "constants": _hash(b"".join(constants)),
        # The register count is the upper byte of `sh_info`; the lower bytes are a symbol index.
        "registers": [section["sh_info"] >> 24 for section in code],
    }


def _compile(kernel: tuple[str, str, int]) -> tuple[str, dict[str, Any]]:
    key, instance, capability = kernel
    return key, properties_of(_native.compile_kernel(instance, capability))


def _name(header: str) -> str:
    """Return the name of the family whose kernels are in `header`."""
    path = Path(header)
    return path.parent.name if path.stem == "kernel" else path.stem


def _kernels_to_compile(every: int | None) -> list[tuple[str, str, int]]:
    """Return for each kernel its key (family, position, capability), its name, and the compute capability."""
    families = {family["header"]: family for family in _native.kernel_families()}
    if every is None:
        from test_kernels_compile import DISASSEMBLED, OTHERS, TO_COMPILE

        rungs = [
            (header, family["instances"][0], family["least_capability"])
            for header, family in families.items()
            if "/ladder/" in header
        ]
        kernels = [*TO_COMPILE, *((header, instance, DISASSEMBLED) for header, instance in OTHERS), *rungs]
    else:
        kernels = [
            (header, instance, every)
            for header, family in families.items()
            if (
                every == family["least_capability"]
                if family["is_for_it_alone"]
                else every >= family["least_capability"]
            )
            for instance in family["instances"]
        ]
    return [
        (
            f"{_name(header)} {families[header]['instances'].index(instance)} {capability}",
            instance,
            capability,
        )
        for header, instance, capability in kernels
    ]


def record(file: Path, every: int | None) -> None:
    """Compile the kernels and write their properties to `file`."""
    kernels = _kernels_to_compile(every)
    with ProcessPoolExecutor() as pool:
        properties = dict(track(pool.map(_compile, kernels), "Compiling kernels", total=len(kernels)))
    file.write_text(json.dumps(properties, indent=1) + "\n")


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return a line for each kernel that differs, or is in one record only."""
    lines = [f"{key}: in one record only" for key in sorted(before.keys() ^ after.keys())]
    for key in before.keys() & after.keys():
        a, b = before[key], after[key]
        if a == b:
            continue
        only_order = all(a[name] == b[name] for name in a if name != "text")
        differing = [
            f"{name} {a[name]} and {b[name]}"
            for name in ("instructions", "registers", "constants")
            if a[name] != b[name]
        ]
        lines.append(
            f"{key}: "
            + ("the same in another order" if only_order else "; ".join(differing) or "other instructions")
        )
    return sorted(lines)


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--every", type=int, metavar="CAPABILITY")
    comparing = commands.add_parser("compare")
    comparing.add_argument("files", type=Path, nargs=2)
    options = parser.parse_args()
    if options.command == "record":
        record(options.file, options.every)
        return 0
    before, after = (json.loads(file.read_text()) for file in options.files)
    lines = differences(before, after)
    print(*lines, f"{len(before.keys() & after.keys()) - len(lines)} kernels are the same", sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
