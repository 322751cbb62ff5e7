"""Writes the rows of trained networks into the table of models/README.md, from the files in models/weights.

From the repository, with convswap installed, after `convswap train NETWORK -o models/weights/...`:

python tools/weights_table.py
"""

from __future__ import annotations

import re
from pathlib import Path

from convswap.models import NETWORKS, Network, unpack_weights

MODELS = Path(__file__).parents[1] / "models"


def row_of(network: Network, content: bytes, title: str) -> str:
    """Return the row for `network`, whose file `title` has this content."""
    made = unpack_weights(network, content, title).made
    course = network.course_accuracy[10_000]
    return (
        f"| `{network.name}` | trained | {made['test_accuracy']:.4f} | {course} | {len(content):,} | "
        f"`{made['command']}` |"
    )


def main() -> None:
    """Replace the rows, and leave those of networks without trained weights."""
    readme = MODELS / "README.md"
    text = readme.read_text(encoding="utf-8")
    for network in NETWORKS.values():
        file = MODELS / "weights" / f"{network.name}.trained.npz"
        if file.exists():
            row = row_of(network, file.read_bytes(), str(file))
            text = re.sub(rf"(?m)^\| `{network.name}` \| (fitted|trained) .*$", lambda _, row=row: row, text)
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
