"""Results written to standard output."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Text that the process printed earlier must stay before the result.
SCRIPT = """
import sys
from convswap.output.files import check_writable, write_text
check_writable(sys.argv[1])
print("before")
write_text(sys.argv[1], "result\\n")
print("after")
"""


@pytest.mark.parametrize("into", ["pipe", "file"])
def test_standard_output_takes_the_result_in_its_place_among_what_is_printed(tmp_path, into):
    # A link like /dev/stdout. The machine's own must not be replaced: tests in a container may run as root.
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    command = [sys.executable, "-c", SCRIPT, link]
    if into == "pipe":
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    else:
        file = tmp_path / "printed.txt"
        with file.open("w") as stream:
            subprocess.run(command, stdout=stream, check=True)
        output = file.read_text()
    assert link.is_symlink()
    assert output == "before\nresult\nafter\n"
