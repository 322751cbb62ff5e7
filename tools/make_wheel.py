"""Build the wheel with kernels for every card: dist/convswap-VERSION-...-manylinux_..._x86_64.whl.

`make wheel` runs it. --compute-capability 8.0 limits the kernels to these cards, plus portable code for newer
cards; --algorithm naive limits them to one algorithm; --dist FOLDER names the output folder.

The program adds the generic kernels to the wheel that pip builds of this checkout. NVRTC of CUDA 12.9
compiles them for every generation of cards; drivers of CUDA 12 and 13 load its code. auditwheel determines
the platform tag. pip installs NVRTC and the tools into build/wheel.

The wheel is for the Python that runs the program, because pybind11 has no stable ABI: call it once for each
Python. It has a software bill of materials (bill_of_materials.py).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from bill_of_materials import write_bill_of_materials

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "build" / "wheel"
NVRTC = "nvidia-cuda-nvrtc-cu12==12.9.86"
TOOLS = ("auditwheel>=6", "wheel>=0.45")
# The weights of the networks have 9 MB, the kernels 8, the libraries 3.
MAX_MEGABYTES = 24


def main() -> int:
    """Build the wheel and print its path."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compute-capability", default="", metavar="8.0,9.0", help="default: all")
    parser.add_argument("--algorithm", default="", metavar="A", help="default: all generic algorithms")
    parser.add_argument("--dist", type=Path, default=REPOSITORY / "dist", metavar="FOLDER")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    built, unpacked, tools = FOLDER / "built", FOLDER / "unpacked", FOLDER / "tools"
    pip("install", "--target", str(tools), *TOOLS)
    pip("install", "--no-deps", "--target", str(FOLDER / "nvrtc"), NVRTC)
    print("Building the library", flush=True)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(built), str(REPOSITORY))
    (plain,) = built.glob("convswap-*.whl")
    with zipfile.ZipFile(plain) as archive:
        archive.extractall(unpacked)
    tools_environment = {**os.environ, "PYTHONPATH": str(tools)}
    name = re.sub(r"-[^-]+\.whl$", f"-{tag_of(plain, tools_environment)}.whl", plain.name)
    print(f"Compiling the generic kernels for {options.compute_capability or 'every card'}", flush=True)
    (compiler,) = (FOLDER / "nvrtc").rglob("libnvrtc.so.12")
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "CONVSWAP_NVRTC": str(compiler)}
    pack = unpacked / "convswap" / "ready_made.pack"
    algorithm_options = ["--algorithm", options.algorithm] if options.algorithm else []
    environment["CONVSWAP_READY_MADE"] = options.compute_capability.replace(",", ";")
    run(
        [sys.executable, "-m", "convswap.planning.ready_made", "--wheel", str(pack), *algorithm_options],
        environment,
    )
    retag(unpacked, name)
    write_bill_of_materials(unpacked, NVRTC.partition("==")[2])
    options.dist.mkdir(parents=True, exist_ok=True)
    for old in options.dist.glob(f"convswap-*-cp3{sys.version_info.minor}-*.whl"):
        old.unlink()
    run(
        [sys.executable, "-m", "wheel", "pack", "--dest-dir", str(options.dist), str(unpacked)],
        tools_environment,
    )
    wheel = options.dist / name
    megabytes = wheel.stat().st_size / 1e6
    print(f"{wheel}, {megabytes:.1f} MB")
    if megabytes > MAX_MEGABYTES:
        print(f"the wheel has more than {MAX_MEGABYTES} MB", file=sys.stderr)
        return 1
    return 0


def pip(*arguments: str) -> None:
    """Run pip, without output unless it fails."""
    run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], dict(os.environ))


def run(command: list[str], environment: dict[str, str]) -> None:
    """Run a command; end with its status if it fails."""
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        raise SystemExit(status)


def tag_of(wheel: Path, environment: dict[str, str]) -> str:
    """Return the tag of the oldest platform that the wheel runs on, from auditwheel."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    platform = re.search(r'platform\s+tag\s*(?:to|:)\s+"(manylinux_\d+_\d+_x86_64)"', output)
    if platform is None:
        raise SystemExit(f"auditwheel names no manylinux platform for {wheel.name}:\n{output}")
    return platform[1]


def retag(unpacked: Path, name: str) -> None:
    """Write the tag of the wheel's name into its metadata."""
    (metadata,) = unpacked.glob("convswap-*.dist-info/WHEEL")
    tag = "-".join(name.removesuffix(".whl").split("-")[-3:])
    metadata.write_text(re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", metadata.read_text()))


if __name__ == "__main__":
    sys.exit(main())
