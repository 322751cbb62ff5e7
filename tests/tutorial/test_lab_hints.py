"""The lab's hint follows from the figures of a run and names the rung that helps."""

from __future__ import annotations

from typing import Any

import pretend_card
import pytest
from convswap.tutorial.lab.hints import hint_for
from convswap.tutorial.lab.result import LabResult, LayerTimes

FACTS = {**pretend_card.FACTS, "outputs": 256_000}
BASELINES = {
    "default provider": 9.0,
    "ladder_03_register_sum": 5.0,
    "ladder_04_shared_memory": 5.5,
    "ladder_06_block_per_image": 4.0,
    "ladder_07_array_of_outputs": 1.0,
    "ladder_09_constants": 0.5,
    "auto": 0.2,
}


def result_of(milliseconds: float, baselines: dict[str, float] = BASELINES, **facts: Any) -> LabResult:
    layer = LayerTimes("conv1", milliseconds, baselines, 0.1, 10**8, 10**9, {**FACTS, **facts})
    return LabResult("mine.cu", "0", "course", "n", 1, "card", cases=1, layers=(layer,))


@pytest.mark.parametrize(
    ("milliseconds", "facts", "words"),
    [
        (5.2, {}, ("copies", "1.3 times", "rung 6")),
        (7.0, {}, ("uncoalesced", "1.4 times", "rung 3")),
        (4.8, {"shared_bytes": 4096}, ("copies", "rung 6")),
        (3.0, {}, ("each multiplication", "3 times", "rung 7")),
        (0.8, {}, ("addresses", "rung 9")),
        (0.55, {}, ("no rung is clearly faster", "5.5 times as long", "rung 15")),
        (0.3, {}, ("no rung is clearly faster", "3.0 times as long", "rung 15")),
        (3.0, {"spilled_bytes": 400}, ("400 bytes", "rung 7")),
        (3.0, {"blocks": 10}, ("10 blocks", "132 multiprocessors", "rung 4")),
        (3.0, {"threads": 100}, ("28 lanes", "rung 5")),
        (3.0, {"outputs": 100_000}, ("256,000 threads", "100,000 outputs", "rung 5")),
        (3.0, {"resident_blocks": 1}, ("12% of its limit", "__launch_bounds__")),
    ],
)
def test_hint_names_what_was_measured_and_the_rung(milliseconds, facts, words) -> None:
    hint = hint_for(result_of(milliseconds, **facts), multiprocessors=132)
    assert all(word in hint for word in words), hint


def test_layers_that_no_rung_supports_are_named() -> None:
    hint = hint_for(result_of(2.0, baselines={"default provider": 0.3, "auto": 0.2}), multiprocessors=132)
    assert "no rung of the ladder supports these layers" in hint and "20.0 times as long" in hint


def test_nothing_timed_has_no_hint() -> None:
    assert hint_for(LabResult("mine.cu", "0", "course", "n", 1, None), 132) == ""
