"""A user's kernel and the library's C++ code that starts it, on a fake driver that computes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from convswap import lab
from fake_card import needs_compiler, run_beside_card

PROGRAM = """
import sys
import numpy as np
from convswap import _native
from convswap.errors import ConvswapError

file = sys.argv[1]
text = open(file).read()
problem = _native.Problem((2, 1, 28, 28), (50, 1, 5, 5))
facts = _native.LabSource("mine.cu", text).facts(problem)
assert (facts["blocks"], facts["threads"]) == (2 * 50 * 4, 256), facts
more = _native.LabSource("mine.cu", text.replace("shared(0)", "shared(100000)")).facts(problem)
assert more["shared_bytes"] >= 100_000, more

x, w = (_native.DeviceArray.from_numpy(np.ones(shape, np.float32), fence=256)
        for shape in ((2, 1, 28, 28), (50, 1, 5, 5)))
y = _native.DeviceArray(problem.output_shape, fence=256)
_native.fill_shared_memory()
_native.conv_device(x, w, None, y, algorithm="lab", files={"convswap.lab": file})
assert x.damage() is None and y.damage() is None
assert x.to_numpy().sum() == 2 * 28 * 28
for lab, words in (("", "no kernel was given"), (file + ".none", "cannot be read")):
    try:
        _native.conv_device(x, w, None, y, algorithm="lab", files={"convswap.lab": lab})
    except ConvswapError as error:
        assert words in str(error), error
    else:
        raise AssertionError(lab)
try:
    _native.DeviceArray((1,), fence=100)
except ConvswapError as error:
    assert "a multiple of 256" in str(error)
print("done")
"""


# Arguments: the kernel's file, then those of `LabProcess`. The program does not wait until the card is open.
ASK = """
import os, sys, time
from convswap.tutorial.lab.kernel import Request, read_kernel
from convswap.tutorial.lab.process import LabProcess

request = Request(read_kernel(sys.argv[1]), "ece408-2017-high", device="cpu")
with LabProcess(*sys.argv[2:]) as process:
    result = process.run(request, print)
    for _ in range(0 if sys.argv[2:] else 300):
        if os.path.exists(os.environ["FAKE_LOG"]):
            break
        time.sleep(0.1)
assert result.card is None and "not timed" in result.notes[0], result
"""


@pytest.mark.extended
@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("device", "opens"), [([], True), (["cpu"], False)])
def test_a_worker_for_the_processor_does_not_open_the_card(
    device: list[str], opens: bool, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    file = lab.new(tmp_path / "mine.cu")
    result = run_beside_card(ASK, file, *device, cache=tmp_path / "cache", FAKE_LOG=log)
    assert result.returncode == 0, result.stderr
    assert ("context on 0" in log.read_text() if log.exists() else False) is opens


@pytest.mark.slow
@needs_compiler
def test_kernel_of_the_users_is_compiled_loaded_and_started(tmp_path: Path) -> None:
    file = lab.new(tmp_path / "mine.cu")
    result = run_beside_card(PROGRAM, file, cache=tmp_path / "cache")
    assert result.stdout == "done\n", result.stderr
