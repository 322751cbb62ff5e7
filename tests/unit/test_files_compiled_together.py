"""No two files that the build may compile together have one name for two things.

Which are compiled together changes with every new file: CMake takes ten after the other of a target.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "custom_op"
TARGETS = {
    "core": sorted(
        path for room in ("conv", "plan", "cpu", "cuda") for path in (SOURCES / room).rglob("*.cc")
    ),
    "convswap": sorted((SOURCES / "onnx").glob("*.cc")),
    "_native": sorted((REPOSITORY / "python" / "bindings").glob("*.cc")),
}
BUILD = (REPOSITORY / "CMakeLists.txt").read_text()
# CMake leaves out of it what is compiled with options of its own.
ALONE = {
    SOURCES / name.removeprefix("custom_op/")
    for sources in re.findall(r"^set_source_files_properties\(([^)]*)COMPILE_OPTIONS", BUILD, re.MULTILINE)
    for name in re.findall(r"custom_op/\S+\.cc", sources)
}
UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace\n", re.MULTILINE | re.DOTALL)
DEFINED = re.compile(
    # A function, with its type before it; a type; a constant or variable.
    r"^(?!return|if|for|while|switch|using|namespace|//|#|\}|\s)[\w:<>,&*\s\[\]]*?\b(\w+)\([^;{]*\)[^;{]*\{"
    r"|^(?:struct|class|enum class) (\w+)"
    r"|^(?:constexpr|const|static|std::)[\w:<>,&* ]* (\w+)(?:\[\w*\])*(?: =|\{|;|\()",
    re.MULTILINE,
)


def together(target: str) -> list[Path]:
    """Return the files of a target that CMake may put into one."""
    return [path for path in TARGETS[target] if path not in ALONE and path.parent.name != "ladder"]


def unnamed_names(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the namespace and the name of what a file defines for itself alone."""
    text = path.read_text(encoding="utf-8")
    space = " ".join(re.findall(r"^namespace ([\w:]+) \{", text, re.MULTILINE))
    for block in UNNAMED.findall(text):
        for names in DEFINED.findall(block):
            yield space, "".join(names)


@pytest.mark.parametrize("target", TARGETS)
def test_files_have_no_name_for_two_things(target: str) -> None:
    files = defaultdict(set)
    for path in together(target):
        for name in unnamed_names(path):
            files[name].add(path.name)
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


def test_names_of_all_kinds_are_found() -> None:
    names = {name for _, name in unnamed_names(SOURCES / "cuda" / "runtime" / "kernel_store.cc")}
    assert {"kMostStoredBytes", "text_of_file", "store_warning"} <= names
    types = {name for _, name in unnamed_names(SOURCES / "cuda" / "runtime" / "driver.cc")}
    assert {"FoundDriver", "look_for_driver", "is_forked"} <= types
    assert len(ALONE) == 6
    assert len(together("core")) > 40
