"""The accuracies that models/README.md states: the one table that tests hold the networks to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path(__file__).parents[2] / "models" / "README.md"
_ROW = re.compile(r"\| `(.+?)` \| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \| (\w+) \| `(.+?)` \|")


@dataclass(frozen=True)
class Stated:
    """A row: top-1 of all 10,000 test images, ours and the course's, the file's size, what made it where."""

    accuracy: float
    course: float
    size: int
    device: str
    command: str


STATED = {
    row[1]: Stated(float(row[2]), float(row[3]), int(row[4].replace(",", "")), row[5], row[6])
    for row in map(_ROW.fullmatch, _TABLE.read_text(encoding="utf-8").splitlines())
    if row
}
