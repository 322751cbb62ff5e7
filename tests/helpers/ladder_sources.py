"""The ladder's rungs in the sources, including rungs that this build lacks."""

from __future__ import annotations

from pathlib import Path

from build_tools import REPOSITORY
from convswap.tutorial.ladder.rung_texts import Page, read_pages

SOURCES = REPOSITORY / "custom_op"
PAGES = read_pages(SOURCES)


def kernel_file(page: Page) -> Path | None:
    """Return the file that launches a rung's kernels; None for a rung without CUDA kernels."""
    kernels = SOURCES / page.file
    return kernels.with_suffix(".cc") if kernels.suffix == ".cuh" else None


WITH_KERNELS = [page for page in PAGES if kernel_file(page) is not None]
assert WITH_KERNELS
