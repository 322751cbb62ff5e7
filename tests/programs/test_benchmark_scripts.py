"""The scripts that time kernels on a card say in one line why they cannot."""

from __future__ import annotations

import pytest
from build_tools import run_script
from convswap import _native

pytestmark = pytest.mark.extended


@pytest.mark.skipif(bool(_native.cuda_devices()), reason="there is a card")
@pytest.mark.parametrize(
    ("script", "arguments"), [("rule", ["many-channels"]), ("estimates", ["many_channels", "many-channels"])]
)
def test_without_a_card_it_is_told(script, arguments):
    answer = run_script(script, *arguments)
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[-1].startswith(f"{script}.py: error: no NVIDIA card was found")
