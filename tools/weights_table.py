"""Write the table of trained weights in models/README.md from the files in models/weights.

python tools/weights_table.py     # after `convswap train NETWORK -o models/weights/...`
"""

from __future__ import annotations

from pathlib import Path

from convswap.models import NETWORKS, Network, unpack_weights

MODELS = Path(__file__).parents[1] / "models"
BEGIN, END = "<!-- weights -->\n", "<!-- /weights -->"
HEADING = """\
| network | accuracy | the course's | bytes | device | made by |
|---|---:|---:|---:|---|---|
"""


def row_of(network: Network, content: bytes, title: str) -> str:
    """Return the row for `network`, whose file `title` has this content."""
    made = unpack_weights(network, content, title).made
    course = network.course_accuracy[10_000]
    return (
        f"| `{network.name}` | {made['test_accuracy']:.4f} | {course} | {len(content):,} "
        f"| {made['device']} | `{made['command']}` |\n"
    )


def main() -> None:
    """Replace the table; every network of the course must have a weights file."""
    rows = []
    for network in NETWORKS.values():
        file = MODELS / "weights" / f"{network.name}.trained.npz"
        rows.append(row_of(network, file.read_bytes(), str(file)))
    readme = MODELS / "README.md"
    before, after = readme.read_text(encoding="utf-8").split(BEGIN)
    readme.write_text(
        before + BEGIN + HEADING + "".join(rows) + END + after.split(END, 1)[1], encoding="utf-8"
    )


if __name__ == "__main__":
    main()
