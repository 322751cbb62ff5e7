"""Put tests/helpers on the path of the programs of this folder, in any working folder."""

from __future__ import annotations

import sys
from pathlib import Path

# Under pytest the folder is there already, before the installed packages.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))
