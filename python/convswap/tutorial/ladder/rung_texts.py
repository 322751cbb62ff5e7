"""Reads the pages of the ladder: the head comment of each rung's file, and its code.

A rung is a file `NN_name` in `tutorial/ladder` of `custom_op/cpu` or `custom_op/cuda`; the package has copies
of these files. The file begins with a comment:

    // Rung 3. The sum in a register
    //
    // Idea: In rung 2 every addition reads ...
    //
    // Gain: A 5x5 filter meant ...

A paragraph that begins with one of the words in `_ALL_FIELDS` begins a field, to which the next paragraphs
belong. The page shows the code after the head comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from convswap.errors import ConvswapError
from convswap.runtime import library

# The package's copies. In a checkout the sources are in custom_op.
INSTALLED = library.INSTALLED / "rungs"
# Fields that every page has, fields about a copy for the lab, and all fields.
_REQUIRED_FIELDS = ("Idea", "Gain", "Counter")
_COPY_FIELDS = ("Launch", "Constants", "Only", "No copy")
_ALL_FIELDS = (*_REQUIRED_FIELDS, "Slower", "Reported", "Precision", "Fuses", "Code", *_COPY_FIELDS)
_TITLE = re.compile(r"// Rung (\d+)\. (\S.*)")
_FIELD = re.compile(rf"({'|'.join(_ALL_FIELDS)}): (.*)", re.DOTALL)
_REPORT = re.compile(r"(ece408-[0-9a-z-]+): (.*)", re.DOTALL)
_CONSTANT = re.compile(r"(\w+) = (\d+)")
_HIDDEN_LINE = re.compile(r"#pragma once|#include .*|namespace \S+ \{|\}  // namespace.*")


@dataclass(frozen=True)
class Page:
    """A rung's page: the fields of its file's head comment, each one or more paragraphs, and the code.

    `name` is the algorithm's name, `file` the path below custom_op. `slower` says why the rung may be slower
    than the rung before; it is "" if that is not expected. `reported` has the times in the course's reports,
    on the reports' cards, by network. `precision` is "ieee" or "tf32". `fuses` says whether the rung also
    computes the ops after a convolution. If `code` is "", `code_location` says where the code is.

    For a copy in a lab file, `launch` and `only` are the lines of those names, and `constants` has the
    template's arguments. If there is no copy, `no_copy` says why.
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
    code_location: str
    code: str
    launch: str
    constants: Mapping[str, int]
    only: str
    no_copy: str


def read_pages(folder: Path = INSTALLED) -> list[Page]:
    """Return the pages of all rungs, from the first to the last.

    `folder` is the package's copy of the files, or custom_op of a checkout.

    Raises:
        ConvswapError: a file cannot be read, a page lacks a field, or a rung's number is missing or repeated.
    """
    files = sorted(folder.glob("*/tutorial/ladder/[0-9][0-9]_*"), key=lambda file: file.name)
    pages = [page for file in files if (page := _read_page(file, folder)) is not None]
    numbers = [page.number for page in pages]
    if numbers != list(range(1, len(pages) + 1)):
        raise ConvswapError(
            f"the rungs in {folder} have the numbers {numbers}: expected 1, 2, 3 and so on; "
            "install convswap anew"
        )
    return pages


def _read_page(file: Path, folder: Path) -> Page | None:
    """Return the page of `file`, or None if the file has no head comment (such as a rung's .cc file)."""
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
    fields = _parse_fields([line.removeprefix("//").strip() for line in lines[1:end]])
    number, _, _ = file.stem.partition("_")
    if missing := [name for name in _REQUIRED_FIELDS if name not in fields]:
        raise ConvswapError(
            f"'{file}' lacks {' and '.join(missing)}: a page has {', '.join(_REQUIRED_FIELDS)}"
        )
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
        reported=_parse_reported_times(fields.get("Reported", "")),
        precision=fields.get("Precision", "ieee"),
        fuses=fields.get("Fuses") == "yes",
        code_location=fields.get("Code", ""),
        code="" if "Code" in fields else _code_shown(lines[end:]),
        launch=fields.get("Launch", ""),
        constants={name: int(value) for name, value in _CONSTANT.findall(fields.get("Constants", ""))},
        only=fields.get("Only", ""),
        no_copy=fields.get("No copy", ""),
    )


def _parse_fields(lines: list[str]) -> dict[str, str]:
    """Return the fields by name; each paragraph is one line, and an empty line separates paragraphs."""
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
        if match := _FIELD.fullmatch(text):
            name, text = match[1], match[2]
            fields[name] = text
        else:
            fields[name] = f"{fields.get(name, '')}\n\n{text}"
    return fields


def _parse_reported_times(text: str) -> dict[str, str]:
    """Parse "NETWORK: 2.9 s. NETWORK: 3.0 s." into {network: reported time}."""
    reports = {}
    for sentence in re.split(r"\.\s+(?=ece408-)|\.$", text):
        if match := _REPORT.fullmatch(sentence.strip()):
            reports[match[1]] = match[2]
    return reports


def _code_shown(lines: list[str]) -> str:
    """Return the code without includes and namespaces, and without repeated blank lines."""
    shown_lines = [line for line in lines if not _HIDDEN_LINE.fullmatch(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(shown_lines)).strip("\n") + "\n"
