"""Every file of the library includes what it names of those headers that the build compiles once for all."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "custom_op"
PRECOMPILED = re.compile(r"target_precompile_headers\(core PRIVATE ([^)]*)\)")
# Of each such header what shows that a file needs it.
NAMES = {
    "algorithm": r"std::(?:ranges::(?!subrange|view|data\b|size\b)\w+|(?:stable_)?sort|(?:min|max)(?:_element)?|"
    r"clamp|copy_n|fill_n|any_of|all_of|none_of|find_if|transform|equal|reverse|count_if)\b",
    "array": r"std::array\b",
    "cmath": r"std::(?:ceil|floor|nearbyint|sqrt|log2?|exp2?|pow|tanh|erf|fabs|is(?:nan|inf|finite)|ldexp|frexp)\b",
    "cstdint": r"\bu?int(?:8|16|32|64)_t\b",
    "cstring": r"std::(?:memcpy|memset|memcmp|strlen|strcmp|strerror)\b",
    "functional": r"std::function\b",
    "limits": r"std::numeric_limits\b",
    "map": r"std::(?:multi)?map\b",
    "memory": r"std::(?:unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|enable_shared_from_this)\b",
    "mutex": r"std::(?:recursive_mutex|mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once)\b",
    "optional": r"std::(?:optional|nullopt)\b",
    "span": r"std::span\b",
    "stdexcept": r"std::(?:runtime_error|invalid_argument|out_of_range|logic_error|domain_error)\b",
    "string": r"std::(?:string|to_string|getline)\b",
    "string_view": r"std::string_view\b",
    "unordered_map": r"std::unordered_map\b",
    "utility": r"std::(?:move|forward|pair|exchange|swap|index_sequence|integer_sequence)\b",
    "vector": r"std::vector\b",
}


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


@cache
def headers_of(path: Path) -> frozenset[str]:
    """Return the standard headers that a file includes, itself or by a header of ours."""
    text = path.read_text(encoding="utf-8")
    found = set(re.findall(r"^#include <(\w+)>", text, re.MULTILINE))
    for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        own = SOURCES / name
        if own.exists():
            found |= headers_of(own)
    return frozenset(found)


def test_there_are_names_of_every_header_that_is_compiled_once() -> None:
    listed = PRECOMPILED.search((REPOSITORY / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert listed and set(re.findall(r"<(\w+)>", listed[1])) == set(NAMES)


@pytest.mark.parametrize(
    "path",
    sorted([*SOURCES.rglob("*.cc"), *SOURCES.rglob("*.h")]),
    ids=lambda path: str(path.relative_to(SOURCES)),
)
def test_what_a_file_names_it_includes(path: Path) -> None:
    text = without_comments(path.read_text(encoding="utf-8"))
    missing = {name for name, named in NAMES.items() if re.search(named, text)} - headers_of(path)
    assert not missing
