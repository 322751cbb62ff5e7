"""Compare every network before and after the swap, for the tables of README.md.

    python benchmarks/compare_networks.py benchmarks/h200/compare
    python benchmarks/compare_networks.py benchmarks/h200/compare-fused --fuse
    python benchmarks/readme_tables.py

The folder gets a file for each network, as `convswap compare NETWORK --json` writes it. The course's
networks run on Fashion-MNIST; the large ones on 64 random images, timed as a whole (`--no-layers`). On a GPU
the sides are all options of the CUDA provider, or fused, its default alone, since the options are in the
other table. Each runs in a process of its own, so that none finds the memory and the libraries of the one
before. A network that cannot be compared keeps the file that it had; the others are compared all the same,
and the exit status tells.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from convswap.errors import ConvswapError
from convswap.models import ALL_NETWORKS, NETWORKS, find

ANSWERS_DIFFER = 1
LARGE_IMAGES = "64"


def command(network: str, file: Path, options: argparse.Namespace) -> list[str]:
    """Return the arguments of `convswap` that compare `network` and write `file`."""
    given = {"device": options.device, "images": options.images, "precision": options.precision}
    given["against"] = options.against or ("default" if options.fuse else "all")
    flags = []
    if network in NETWORKS:
        given["data"] = options.data
    else:
        # The tables of README.md give a deep network's time as a whole; its Convs alone take minutes.
        flags.append("--no-layers")
        given["images"] = options.images or LARGE_IMAGES
    if options.fuse:
        flags.append("--fuse")
    flags += [part for name, value in given.items() if value for part in (f"--{name}", value)]
    return ["compare", network, *flags, "--json", str(file)]


def compare_all(options: argparse.Namespace) -> int:
    """Compare each network, and return the highest exit status."""
    options.folder.mkdir(parents=True, exist_ok=True)
    statuses = {}
    for number, network in enumerate(options.networks, start=1):
        print(f"{network}, {number} of {len(options.networks)}", file=sys.stderr, flush=True)
        file = options.folder / f"{network}.json"
        arguments = command(network, file, options)
        statuses[network] = subprocess.run(
            [sys.executable, "-m", "convswap.cli", *arguments], check=False
        ).returncode
    for network, status in statuses.items():
        if status:
            failed = f"not compared, status {status}; its results are as they were"
            print(
                f"{network}: {'the answers differ' if status == ANSWERS_DIFFER else failed}", file=sys.stderr
            )
    return max(statuses.values(), key=abs)


def main() -> int:
    """Read the command line and compare; return the exit status, as `convswap compare` has it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the results go")
    parser.add_argument("networks", nargs="*", default=[], metavar="NETWORK", help="default: all")
    parser.add_argument("--device", metavar="D", help="as for convswap compare")
    parser.add_argument("--images", metavar="N", help="as for convswap compare")
    parser.add_argument("--precision", metavar="P", help="as for convswap compare")
    parser.add_argument("--fuse", action="store_true", help="as for convswap compare")
    parser.add_argument("--data", default="fashion-mnist", metavar="NAME", help="of the course's networks")
    parser.add_argument(
        "--against", metavar="SIDES", help="as for convswap compare; default: all, or with --fuse, default"
    )
    options = parser.parse_intermixed_args()  # networks may follow options
    try:
        options.networks = [find(name).name for name in options.networks] or list(ALL_NETWORKS)
        return compare_all(options)
    except (ConvswapError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
