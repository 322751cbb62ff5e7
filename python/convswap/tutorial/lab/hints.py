"""One hint for a kernel's author, drawn from what was measured, with the rung that treats it."""

from __future__ import annotations

from collections.abc import Sequence

from convswap.tutorial.lab.result import LabResult, LayerTimes

# Of a multiprocessor's places for threads: below it there are too few to compute while others wait.
_LOW_OCCUPANCY = 0.25
# So many times as many threads as outputs: most of them have nothing to do.
_IDLE = 1.5
# A rung is worth a hint from here on: so many times as fast.
_WORTH = 1.15
_LADDER = "docs/tutorial/ladder.md"
_WHAT_IS_FAST = "tiles that are read once, rung 6, and the tensor cores, rung 15"


def hint_for(result: LabResult, multiprocessors: int) -> str:
    """Return the hint; "" where nothing was timed."""
    if not result.layers:
        return ""
    slowest = max(result.layers, key=lambda layer: layer.milliseconds)
    for look in (_spills, _few_blocks, _idle_threads, _latency):
        if said := look(slowest, multiprocessors):
            return said
    return _beside_the_ladder(result)


def _spills(layer: LayerTimes, _multiprocessors: int) -> str:
    spilled = layer.facts["spilled_bytes"]
    if not spilled:
        return ""
    return (
        f"registers: each thread keeps {spilled:,} bytes in slow memory, since they did not fit into its "
        f"{layer.facts['registers']} registers or are indexed by what only the run knows. Make the array's "
        f"size and every index into it constants, and unroll the loops over it: rung 7 ({_LADDER})."
    )


def _few_blocks(layer: LayerTimes, multiprocessors: int) -> str:
    blocks = layer.facts["blocks"]
    if blocks >= multiprocessors:
        return ""
    return (
        f"idle multiprocessors: {blocks:,} blocks, and the card has {multiprocessors} multiprocessors. "
        f"Give a block less to do: rung 4 has a block for each image and filter ({_LADDER})."
    )


def _idle_threads(layer: LayerTimes, _multiprocessors: int) -> str:
    threads = layer.facts["blocks"] * layer.facts["threads"]
    lanes = layer.facts["threads"] % 32
    if lanes:
        return (
            f"idle threads: a block has {layer.facts['threads']} threads, and the card runs them 32 at a "
            f"time, so that {32 - lanes} places of the last warp are empty. Take a multiple of 32: rung 5 "
            f"({_LADDER})."
        )
    outputs = layer.facts["outputs"]
    if threads < _IDLE * outputs:
        return ""
    return (
        f"idle threads: {threads:,} threads are started for {outputs:,} outputs, so that most have nothing "
        f"to do. Let blocks be flat, and their threads take outputs by number: rung 5 ({_LADDER})."
    )


def _latency(layer: LayerTimes, _multiprocessors: int) -> str:
    if layer.occupancy >= _LOW_OCCUPANCY:
        return ""
    facts = layer.facts
    return (
        f"waiting: a multiprocessor holds {facts['resident_blocks']} blocks of {facts['threads']} threads, "
        f"{layer.occupancy:.0%} of what it could, by {facts['registers']} registers of a thread and "
        f"{facts['shared_bytes']:,} bytes of shared memory of a block. Too few threads compute while others "
        f"wait for memory: smaller tiles, or fewer registers by __launch_bounds__, rung 7 ({_LADDER})."
    )


def _beside_the_ladder(result: LabResult) -> str:
    """Return what the first rung that is clearly faster has and the kernel has not."""
    own = result.milliseconds
    assert own is not None
    marks = {name: result.mark(name) for name, _ in _STEPS}
    uses_shared = any(layer.facts["shared_bytes"] for layer in result.layers)
    for name, advice in _STEPS:
        mark = marks[name]
        if mark is None or own < _WORTH * mark or (name == "ladder_04_shared_memory" and uses_shared):
            continue
        number = int(name.split("_")[1])
        return f"{advice.format(times=own / mark)}: rung {number} ({_LADDER})."
    return _at_the_end(result, any(mark is not None for mark in marks.values()))


def _at_the_end(result: LabResult, had_rungs: bool) -> str:
    """Return how far the floor is, where no rung is clearly faster."""
    assert result.milliseconds is not None
    said = (
        "no rung that it was set beside is clearly faster"
        if had_rungs
        else "no rung of the ladder takes these layers"
    )
    if (floor := result.floor_ms) is not None:
        said += f"; the floor is {floor:.3g} ms, and it takes {result.milliseconds / floor:.1f} times as long"
    if had_rungs:
        return f"{said}. What is left is to feed the tensor cores: rung 15 ({_LADDER})."
    return f"{said}. What made the ladder fast does here too: {_WHAT_IS_FAST} ({_LADDER})."


# What the first rung that is clearly faster has, with how many times as fast it is.
_STEPS: Sequence[tuple[str, str]] = (
    (
        "ladder_03_register_sum",
        "uncoalesced or redundant accesses: a thread for each output, with its sum in a register and "
        "neighbours that read neighbouring pixels, is {times:.2g} times as fast",
    ),
    (
        "ladder_04_shared_memory",
        "shared memory: every pixel is fetched once for each tap; a copy of image and filter in "
        "shared memory is {times:.2g} times as fast",
    ),
    (
        "ladder_06_block_per_image",
        "copies: an image is fetched anew for every filter; a block that keeps it is {times:.2g} "
        "times as fast",
    ),
    (
        "ladder_07_array_of_outputs",
        "reads for each multiplication: a pixel can be multiplied by the tap of every filter once it "
        "is fetched, with an array of sums in registers, which is {times:.2g} times as fast",
    ),
    (
        "ladder_09_constants",
        "addresses: with every size a constant the compiler needs no division and reads four taps at "
        "once, which is {times:.2g} times as fast",
    ),
    (
        "ladder_13_winograd",
        "multiplications: Winograd's algorithm has a third of them, which is {times:.2g} times as fast",
    ),
)
