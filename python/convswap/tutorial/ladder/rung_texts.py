"""The pages of the ladder: what the head of each rung's file says of it, and its code.

A rung is a file `NN_name` in `tutorial/ladder` of `custom_op/cpu` or `custom_op/cuda`; the package has copies
of these files. Its head is a comment:

    // Rung 3. The sum in a register
    //
    // Idea: In rung 2 every addition reads ...
    //
    // Gain: A 5x5 filter meant ...

A paragraph that begins with one of the words in `_FIELDS` begins a field; the paragraphs after it belong to
it. What follows the head is the code that a page shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convswap.errors import ConvswapError
from convswap.runtime import library

# Beside the package's modules; in a checkout the sources are in custom_op.
INSTALLED = library.INSTALLED / "rungs"
# What a page must say, and what it may.
_NEEDED = ("Idea", "Gain", "Counter")
_OF_A_COPY = ("Launch", "Constants", "Only", "No copy")
_FIELDS = (*_NEEDED, "Slower", "Reported", "Precision", "Fuses", "Code", *_OF_A_COPY)
_TITLE = re.compile(r"// Rung (\d+)\. (\S.*)")
_FIELD = re.compile(rf"({'|'.join(_FIELDS)}): (.*)", re.DOTALL)
_REPORT = re.compile(r"(ece408-[0-9a-z-]+): (.*)", re.DOTALL)
_CONSTANT = re.compile(r"(\w+) = (\d+)")
_NOT_SHOWN = re.compile(r"#pragma once|#include .*|namespace \S+ \{|\}  // namespace.*")


@dataclass(frozen=True)
class Page:
    """What a rung's file says: the fields of its head, each one or more paragraphs, and its code.

    `name` is the algorithm's, `file` the path below custom_op. `slower` says why the rung may be slower than
    the one before; "" where it is not expected to be. `reported` has the times of the course's reports, on
    their own cards, by network. `precision` is what the rung computes in, "ieee" or "tf32"; `fuses` says
    whether it takes in what follows a convolution. `code` is "" where `elsewhere` says where it is.

    For a copy in one file of the lab, `launch` and `only` are its lines of those names, and `constants` what
    the template takes; `no_copy` says why there is none.
    """

    number: int
    name: str
    device: str
    file: str
    title: str
    idea: str
    gain: str
    slower: str
    counter: str
    reported: Mapping[str, str]
    precision: str
    fuses: bool
    elsewhere: str
    code: str
    launch: str
    constants: Mapping[str, int]
    only: str
    no_copy: str


def read_pages(folder: Path = INSTALLED) -> list[Page]:
    """Return the pages of all rungs, from the first to the last.

    `folder` is the package's copy of the files, or custom_op of a checkout.

    Raises:
        ConvswapError: a file cannot be read, a page lacks something, or a number is missing or there twice.
    """
    files = sorted(folder.glob("*/tutorial/ladder/[0-9][0-9]_*"), key=lambda file: file.name)
    pages = [page for file in files if (page := _read(file, folder)) is not None]
    numbers = [page.number for page in pages]
    if numbers != list(range(1, len(pages) + 1)):
        raise ConvswapError(
            f"the rungs in {folder} have the numbers {numbers}: expected 1, 2, 3 and so on; "
            "install convswap anew"
        )
    return pages


def _read(file: Path, folder: Path) -> Page | None:
    """Return the page of `file`; None where it has none, but belongs to a file that does."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConvswapError(f"cannot read '{file}': {error.strerror}") from error
    while lines and lines[0] in ("#pragma once", ""):
        del lines[0]
    title = _TITLE.fullmatch(lines[0]) if lines else None
    if title is None:
        return None
    end = next((index for index, line in enumerate(lines) if not line.startswith("//")), len(lines))
    fields = _fields([line.removeprefix("//").strip() for line in lines[1:end]])
    number, _, _ = file.stem.partition("_")
    if missing := [name for name in _NEEDED if name not in fields]:
        raise ConvswapError(f"'{file}' lacks {' and '.join(missing)}: a page has {', '.join(_NEEDED)}")
    if int(number) != int(title[1]):
        raise ConvswapError(
            f"'{file}' says that it is rung {title[1]}: expected {int(number)}, as it is named"
        )
    return Page(
        number=int(number),
        name=f"ladder_{file.stem}",
        device=file.relative_to(folder).parts[0],
        file=str(file.relative_to(folder)),
        title=title[2],
        idea=fields["Idea"],
        gain=fields["Gain"],
        slower=fields.get("Slower", ""),
        counter=fields["Counter"],
        reported=_reports(fields.get("Reported", "")),
        precision=fields.get("Precision", "ieee"),
        fuses=fields.get("Fuses") == "yes",
        elsewhere=fields.get("Code", ""),
        code="" if "Code" in fields else _shown(lines[end:]),
        launch=fields.get("Launch", ""),
        constants={name: int(value) for name, value in _CONSTANT.findall(fields.get("Constants", ""))},
        only=fields.get("Only", ""),
        no_copy=fields.get("No copy", ""),
    )


def _fields(lines: list[str]) -> dict[str, str]:
    """Return the fields by name, paragraphs apart by an empty line, each in one line."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line:
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    fields: dict[str, str] = {}
    name = ""
    for paragraph in filter(None, paragraphs):
        text = " ".join(paragraph)
        if found := _FIELD.fullmatch(text):
            name, text = found[1], found[2]
            fields[name] = text
        else:
            fields[name] = f"{fields.get(name, '')}\n\n{text}"
    return fields


def _reports(text: str) -> dict[str, str]:
    """Return {network: what was reported} of "NETWORK: 2.9 s. NETWORK: 3.0 s."."""
    found = {}
    for sentence in re.split(r"\.\s+(?=ece408-)|\.$", text):
        if match := _REPORT.fullmatch(sentence.strip()):
            found[match[1]] = match[2]
    return found


def _shown(lines: list[str]) -> str:
    """Return the code without what a reader of the page needs not see, blank lines never doubled."""
    kept = [line for line in lines if not _NOT_SHOWN.fullmatch(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n") + "\n"
