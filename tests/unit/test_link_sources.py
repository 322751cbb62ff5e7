"""`make dev`: the installed package links to the checkout's Python files, and pip can uninstall it."""

from __future__ import annotations

import link_sources
import pytest

MAP = """
[tool.scikit-build.wheel.packages]
"package" = "python/package"
"package/models" = "models"
"""


@pytest.fixture
def checkout_and_site(tmp_path):
    """Return a checkout, and a site folder with its installed package and a compiled module."""
    root, site = tmp_path / "checkout", tmp_path / "site"
    for name in ("python/package/room/inner.py", "models/weights/a.npz", "python/package/__init__.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("given")
    (root / "pyproject.toml").write_text(MAP)
    (site / "package/room").mkdir(parents=True)
    (site / "package/__init__.py").write_text("installed")
    (site / "package/_native.so").write_text("compiled")
    return root, site


def test_files_of_every_package_of_the_map_are_read_from_the_checkout(checkout_and_site):
    root, site = checkout_and_site
    link_sources.link(root, site)
    (root / "python/package/__init__.py").write_text("edited")
    assert (site / "package/__init__.py").read_text() == "edited"
    assert (site / "package/room/inner.py").resolve() == root / "python/package/room/inner.py"
    assert (site / "package/models/weights/a.npz").resolve() == root / "models/weights/a.npz"


def test_compiled_modules_stay(checkout_and_site):
    root, site = checkout_and_site
    link_sources.link(root, site)
    assert (site / "package/_native.so").read_text() == "compiled"


def test_no_folder_is_a_link_through_which_pip_would_remove_sources(checkout_and_site):
    root, site = checkout_and_site
    link_sources.link(root, site)
    link_sources.link(root, site)
    assert [path for path in site.rglob("*") if path.is_symlink() and path.is_dir()] == []


def test_link_to_a_file_that_was_removed_goes(checkout_and_site):
    root, site = checkout_and_site
    link_sources.link(root, site)
    (root / "models/weights/a.npz").unlink()
    (root / "models/weights/b.npz").touch()
    link_sources.link(root, site)
    assert [path.name for path in (site / "package/models/weights").iterdir()] == ["b.npz"]


def test_links_into_a_folder_that_was_removed_go(checkout_and_site):
    root, site = checkout_and_site
    link_sources.link(root, site)
    (root / "python/package/room/inner.py").unlink()
    link_sources.link(root, site)
    assert list((site / "package/room").iterdir()) == []


def test_cached_bytecode_is_left_out(checkout_and_site):
    root, site = checkout_and_site
    (root / "python/package/__pycache__").mkdir()
    (root / "python/package/__pycache__/old.pyc").touch()
    link_sources.link(root, site)
    assert not (site / "package/__pycache__").exists()
