"""Replace the installed Python files of convswap by links to those of this checkout.

    python tools/link_sources.py

The compiled modules stay where they are, beside the links. Files are linked one by one: pip, which takes the
names of installed files from its record, would follow a linked folder and remove what is in the checkout.
"""

from __future__ import annotations

import importlib.metadata
import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def links(root: Path, site: Path) -> dict[Path, Path]:
    """Return the source of each file of the package in `site`, by pyproject.toml's map of the packages."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packages = settings["tool"]["scikit-build"]["wheel"]["packages"]
    return {
        site / package / source.relative_to(root / folder): source
        for package, folder in packages.items()
        for source in sorted((root / folder).rglob("*"))
        if source.is_file() and "__pycache__" not in source.parts
    }


def link(root: Path, site: Path) -> None:
    """Make the links in place of the installed files, and remove links to files that no longer exist."""
    wanted = links(root, site)
    for installed, source in wanted.items():
        installed.parent.mkdir(parents=True, exist_ok=True)
        installed.unlink(missing_ok=True)
        installed.symlink_to(source)
    for path in list(Path(os.path.commonpath(wanted)).rglob("*")):
        if path.is_symlink() and not path.exists():
            path.unlink()


if __name__ == "__main__":
    link(ROOT, Path(str(importlib.metadata.distribution("convswap").locate_file("."))))
