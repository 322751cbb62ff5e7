"""Every file of the library includes what it names of those headers that the build compiles once for all."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "custom_op"
FILES = sorted(
    path for end in ("cc", "h") for path in SOURCES.rglob(f"*.{end}") if "emulation" not in path.parts
)
PRECOMPILED = re.compile(r"target_precompile_headers\(core PRIVATE ([^)]*)\)")
# Of each such header what shows that a file needs it: names in std, which may be in std::ranges.
NAMES = {
    "algorithm": "sort stable_sort min max min_element max_element clamp copy copy_n fill fill_n find "
    "find_if any_of all_of none_of transform equal reverse count_if replace rotate unique",
    "array": "array",
    "cmath": "ceil floor nearbyint sqrt hypot log log2 exp exp2 pow tanh erf fabs isnan isinf isfinite ldexp "
    "frexp",
    "cstdint": "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t uintptr_t",
    "cstring": "memcpy memset memcmp strlen strcmp strerror",
    "functional": "function less",
    "limits": "numeric_limits",
    "map": "map multimap",
    "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared static_pointer_cast",
    "mutex": "mutex recursive_mutex lock_guard unique_lock scoped_lock once_flag call_once try_to_lock",
    "optional": "optional nullopt",
    "span": "span",
    "stdexcept": "runtime_error invalid_argument out_of_range logic_error",
    "string": "string to_string getline",
    "string_view": "string_view",
    "unordered_map": "unordered_map",
    "utility": "move forward pair exchange swap index_sequence integer_sequence",
    "vector": "vector",
}
# Which are written without their namespace.
GLOBAL = {"cstdint"}
# Names in std of other headers.
OTHERS = """
align_val_t atomic bad_alloc begin bit_cast byte condition_variable conditional_t countr_zero
current_exception deque end errc exception exception_ptr fflush from_chars gcd getenv ifstream
initializer_list ios ios_base isalnum isdigit is_same_v istreambuf_iterator istringstream jthread ofstream
ptrdiff_t rbegin rename rethrow_exception set shared_lock shared_mutex size size_t sleep_for snprintf sscanf
ssize system_error thread tuple
"""


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


@cache
def pattern_of(header: str) -> re.Pattern[str]:
    space = "" if header in GLOBAL else "std::(?:ranges::)?"
    return re.compile(rf"\b{space}(?:{'|'.join(NAMES[header].split())})\b")


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


def test_every_name_in_std_is_known_to_be_of_some_header() -> None:
    known = set(OTHERS.split()).union(*(names.split() for names in NAMES.values()))
    text = "\n".join(without_comments(path.read_text(encoding="utf-8")) for path in FILES)
    assert not set(re.findall(r"\bstd::(?:ranges::)?([a-z_0-9]+)\b(?!::)", text)) - known


def test_what_a_file_names_it_includes() -> None:
    missing = {}
    for path in FILES:
        text = without_comments(path.read_text(encoding="utf-8"))
        if own := {header for header in NAMES if pattern_of(header).search(text)} - headers_of(path):
            missing[str(path.relative_to(SOURCES))] = own
    assert missing == {}
