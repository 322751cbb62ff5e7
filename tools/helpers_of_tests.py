"""Lets the programs of this folder import what tests share, from whatever folder they are run."""

from __future__ import annotations

import sys
from pathlib import Path

# pytest has it there already, before what is installed.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
