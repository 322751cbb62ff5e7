"""The source distribution has the files of the checkout, so installing it installs what the tests tested."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from build_tools import REPOSITORY

pytestmark = pytest.mark.extended

BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


def test_the_sdist_has_every_file_of_the_checkout_as_it_is(tmp_path: Path) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is no checkout of git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True)
    tracked = {name.decode() for name in listed.stdout.split(b"\0") if name}
    result = subprocess.run(
        [sys.executable, "-c", BUILD, tmp_path], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    (archive,) = tmp_path.glob("convswap-*.tar.gz")
    with tarfile.open(archive) as files:
        packed = {
            member.name.partition("/")[2]: files.extractfile(member).read()
            for member in files
            if member.isfile()
        }
    assert packed.keys() - {"PKG-INFO"} >= {name for name in tracked if (REPOSITORY / name).is_file()}
    assert {
        name for name in tracked & packed.keys() if packed[name] != (REPOSITORY / name).read_bytes()
    } == set()
    # `pip install convswap-*.tar.gz` reads the version and the page from PKG-INFO.
    assert b"\nName: convswap\n" in packed["PKG-INFO"]
