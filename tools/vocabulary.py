"""Find identifiers that were replaced by the field's terms.

    python tools/vocabulary.py        # a line for each old identifier found; exit status 1 if any

In tools/vocabulary.tsv a line with the name of a file or folder precedes the old identifiers that must not
come back there, each with the new identifier. Many old identifiers are ordinary words, so comments and
strings do not count.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".tsv")
CPP = (".cc", ".cu", ".cuh", ".def", ".h")
_CPP_TEXTS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def identifiers(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield line and identifier of a C++ or Python source, without comments and string literals."""
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
        return
    code = _CPP_TEXTS.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), start=1):
        for found in _IDENTIFIER.finditer(line):
            yield number, found[0]


def old_names(folder: Path, table: Path) -> Iterator[str]:
    """Yield a line for each old identifier in the tracked sources of `folder`."""
    scopes: dict[str, dict[str, str]] = {}
    scope = ""
    for line in table.read_text().splitlines():
        if "\t" not in line:
            scope = line
            scopes[scope] = {}
            continue
        old, new = line.split("\t")
        scopes[scope][old] = new
    listed = subprocess.run(["git", "ls-files"], cwd=folder, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        here = {
            old: new
            for scope, replaced in scopes.items()
            if name == scope or name.startswith(f"{scope}/")
            for old, new in replaced.items()
        }
        if not here or not name.endswith((*CPP, ".py")):
            continue
        for number, identifier in identifiers(name, (folder / name).read_text()):
            if identifier in here:
                yield f"{name}:{number}: `{identifier}`: it is called `{here[identifier]}`"


def main() -> int:
    """Print the old identifiers; return the exit status."""
    lines = list(old_names(REPOSITORY, TABLE))
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
