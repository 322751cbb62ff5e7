"""Compiled kernels are stored for later processes; an unusable store is no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from convswap import _native
from convswap.errors import ConvswapError
from each_case import each

COMPILER = _native.kernel_compiler()
KERNEL = "naive::kernel<float>"
CAPABILITY = 90

pytestmark = pytest.mark.skipif(bool(COMPILER["why_not"]), reason=COMPILER["why_not"] or "NVRTC is there")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty store, in a cache folder that does not exist yet."""
    monkeypatch.setenv("CONVSWAP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


def compile_kernel() -> bytes:
    return _native.compile_kernel(KERNEL, CAPABILITY)


def stored_kernels(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kernel"))


def test_a_kernel_is_compiled_once_and_stored_in_a_folder_of_the_users_own(folder: Path) -> None:
    code = compile_kernel()
    (file,) = stored_kernels(folder)
    assert file.name.startswith("sm_90_naive_kernel_float_-")
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    before = file.stat()
    os.utime(file, (0, 0))
    assert compile_kernel() == code
    # Reading a kernel updates its time of use and does not rewrite it.
    assert file.stat().st_ino == before.st_ino and file.stat().st_mtime > 0
    assert not list(folder.glob("*.part"))


def test_stored_kernels_are_counted_and_cleared(folder: Path) -> None:
    compile_kernel()
    (file,) = stored_kernels(folder)
    (folder / "x.part").write_bytes(b"left by a process that was stopped")
    facts = _native.kernel_store()
    assert (facts["folder"], facts["unused"], facts["kernels"]) == (str(folder), "", 1)
    assert facts["bytes"] == file.stat().st_size + (folder / "x.part").stat().st_size
    assert _native.clear_kernel_store() == 1
    assert _native.kernel_store()["kernels"] == 0 and not list(folder.glob("*.part"))


@each(
    "damage",
    [
        lambda text: b"",
        lambda text: text[: len(text) // 2],
        lambda text: text + b"x",
        lambda text: text[:-9] + bytes([text[-9] ^ 1]) + text[-8:],
        lambda text: text.replace(b"sm_90a", b"sm_80a", 1),
        lambda text: b"\0" * len(text),
    ],
)
def test_a_damaged_kernel_is_compiled_again(damage, folder: Path) -> None:
    code = compile_kernel()
    (file,) = stored_kernels(folder)
    intact = file.read_bytes()
    file.write_bytes(damage(intact))
    assert compile_kernel() == code
    assert file.read_bytes() == intact


def test_a_kernel_with_line_info_is_another_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = compile_kernel()
    monkeypatch.setenv("CONVSWAP_LINE_INFO", "1")
    with_lines = compile_kernel()
    assert b".debug_line" in with_lines and b".debug_line" not in plain
    assert len(stored_kernels(folder)) == 2


def test_a_folder_that_others_may_write_to_is_not_used(folder: Path) -> None:
    compile_kernel()
    (file,) = stored_kernels(folder)
    file.unlink()
    folder.chmod(0o777)
    compile_kernel()
    assert not stored_kernels(folder)
    assert _native.kernel_store()["unused"] == "others may write to it; chmod go-w would keep them out"


def test_a_file_in_place_of_the_folder_is_not_used(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    assert compile_kernel()
    assert _native.kernel_store()["unused"] == "it is not a folder"


def test_a_cache_that_cannot_be_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file")
    monkeypatch.setenv("CONVSWAP_CACHE", str(tmp_path / "file" / "cache"))
    assert compile_kernel()
    assert _native.kernel_store()["unused"] == "it cannot be made: Not a directory"


def test_a_source_that_does_not_compile_is_named_with_file_and_line() -> None:
    with pytest.raises(
        RuntimeError, match=r"cannot compile few_channels::kernel.* capability 7\.5: "
    ) as raised:
        _native.compile_kernel("few_channels::kernel<Float16Pairs, 2, 5, 1, false>", 75, keep=False)
    assert "cuda/few_channels/kernel.cuh(" in str(raised.value)
    assert "few_channels needs compute capability 8.0 or newer" in str(raised.value)


def test_a_kernel_that_no_family_lists_is_refused() -> None:
    with pytest.raises(ConvswapError, match=r"no family of kernels lists naive::kernel<int>"):
        _native.compile_kernel("naive::kernel<int>", 90)


def test_a_card_that_the_compiler_does_not_know_gets_portable_code(folder: Path) -> None:
    code = _native.compile_kernel(KERNEL, 199)
    assert b".version" in code and b".target sm_121" in code
