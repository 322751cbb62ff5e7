"""Data sets with fewer test images, for what is trained in less time than its test would take."""

from __future__ import annotations

from typing import Any

import pytest
from convswap.data import datasets

# Of 10,000.
IMAGES = 2000


def load_fewer_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `datasets.load` give the first `IMAGES` test images where it is not told how many."""
    load = datasets.load

    def load_fewer(
        name: str, *, split: str = "test", images: int | None = None, **how: Any
    ) -> datasets.Dataset:
        fewer = IMAGES if split == "test" and images is None else images
        return load(name, split=split, images=fewer, **how)

    monkeypatch.setattr(datasets, "load", load_fewer)
