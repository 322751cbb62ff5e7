"""Replace the installed Python files of convswap by links to the files of this checkout.

    python tools/link_sources.py

Compiled modules stay as installed. Each file is a link, because pip removes installed files one by one: it
would follow a linked folder and remove files of the checkout.
"""

from __future__ import annotations

import importlib.metadata
import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def links(root: Path, site: Path) -> dict[Path, Path]:
    """Return the source of each file that pyproject.toml's map of packages installs in `site`."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packages = settings["tool"]["scikit-build"]["wheel"]["packages"]
    return {
        site / package / source.relative_to(root / folder): source
        for package, folder in packages.items()
        for source in sorted((root / folder).rglob("*"))
        if source.is_file() and "__pycache__" not in source.parts
    }


def link(root: Path, site: Path) -> None:
    """Replace the installed files by links, and remove links to files that no longer exist."""
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
