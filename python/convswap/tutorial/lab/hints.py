"""One hint for a kernel's author, drawn from the measurements, with the rung that explains it."""

from __future__ import annotations

from collections.abc import Sequence

from convswap.tutorial.lab.result import LabResult, LayerTimes

# Below this occupancy too few threads compute while others wait for memory.
_MIN_OCCUPANCY = 0.25
# From this many threads per output on, the hint is about idle threads.
_MAX_THREADS_PER_OUTPUT = 1.5
# A rung becomes the hint if it is at least this many times as fast as the kernel.
_MIN_SPEEDUP = 1.15
_LADDER = "docs/tutorial/ladder.md"
_GENERAL_ADVICE = "tiles that are read once, rung 6, and the tensor cores, rung 15"


def hint_for(result: LabResult, multiprocessors: int) -> str:
    """Return the hint, or "" if nothing was timed."""
    if not result.layers:
        return ""
    slowest = max(result.layers, key=lambda layer: layer.milliseconds)
    for hint_of in (_spills, _few_blocks, _idle_threads, _latency):
        if hint := hint_of(slowest, multiprocessors):
            return hint
    return _faster_rung(result)


def _spills(layer: LayerTimes, _multiprocessors: int) -> str:
    spilled = layer.facts["spilled_bytes"]
    if not spilled:
        return ""
    return (
        f"registers: each thread has {spilled:,} bytes in local memory, because they did not fit into its "
        f"{layer.facts['registers']} registers or their indices are not constants. Make the array's size and "
        f"every index into it constants, and unroll the loops over it: rung 7 ({_LADDER})."
    )


def _few_blocks(layer: LayerTimes, multiprocessors: int) -> str:
    blocks = layer.facts["blocks"]
    if blocks >= multiprocessors:
        return ""
    return (
        f"idle multiprocessors: {blocks:,} blocks, and the card has {multiprocessors} multiprocessors. "
        f"Use more and smaller blocks: rung 4 has a block for each image and filter ({_LADDER})."
    )


def _idle_threads(layer: LayerTimes, _multiprocessors: int) -> str:
    threads = layer.facts["blocks"] * layer.facts["threads"]
    lanes = layer.facts["threads"] % 32
    if lanes:
        return (
            f"idle threads: a block has {layer.facts['threads']} threads, and the card runs them in warps of "
            f"32, so {32 - lanes} lanes of the last warp are idle. Use a multiple of 32: rung 5 ({_LADDER})."
        )
    outputs = layer.facts["outputs"]
    if threads < _MAX_THREADS_PER_OUTPUT * outputs:
        return ""
    return (
        f"idle threads: {threads:,} threads are started for {outputs:,} outputs, and the others are idle. "
        f"Use one-dimensional blocks whose threads number the outputs: rung 5 ({_LADDER})."
    )


def _latency(layer: LayerTimes, _multiprocessors: int) -> str:
    if layer.occupancy >= _MIN_OCCUPANCY:
        return ""
    facts = layer.facts
    return (
        f"low occupancy: a multiprocessor holds {facts['resident_blocks']} blocks of {facts['threads']} "
        f"threads, {layer.occupancy:.0%} of its limit, because of {facts['registers']} registers per thread "
        f"and {facts['shared_bytes']:,} bytes of shared memory per block. Too few threads compute while "
        "others wait for memory. Use smaller tiles, or fewer registers by __launch_bounds__: rung 7 "
        f"({_LADDER})."
    )


def _faster_rung(result: LabResult) -> str:
    """Return the advice of the first rung that is clearly faster than the kernel."""
    milliseconds = result.milliseconds
    assert milliseconds is not None
    baselines = {name: result.baseline(name) for name, _ in _ADVICE}
    uses_shared = any(layer.facts["shared_bytes"] for layer in result.layers)
    for name, advice in _ADVICE:
        baseline = baselines[name]
        if baseline is None or milliseconds < _MIN_SPEEDUP * baseline:
            continue
        if name == "ladder_04_shared_memory" and uses_shared:
            continue
        number = int(name.split("_")[1])
        return f"{advice.format(times=milliseconds / baseline)}: rung {number} ({_LADDER})."
    return _distance_to_floor(result, any(baseline is not None for baseline in baselines.values()))


def _distance_to_floor(result: LabResult, had_rungs: bool) -> str:
    """Return a hint with the distance to the floor, for a kernel that no rung clearly beats."""
    assert result.milliseconds is not None
    hint = "no rung is clearly faster" if had_rungs else "no rung of the ladder supports these layers"
    if (floor := result.floor_ms) is not None:
        times = result.milliseconds / floor
        hint += f"; the floor is {floor:.3g} ms, and the kernel takes {times:.1f} times as long"
    if had_rungs:
        return f"{hint}. The next step is to use the tensor cores: rung 15 ({_LADDER})."
    return f"{hint}. The ladder's main steps apply here too: {_GENERAL_ADVICE} ({_LADDER})."


# Advice of the rungs, in order; `times` is how many times as fast as the kernel the rung is.
_ADVICE: Sequence[tuple[str, str]] = (
    (
        "ladder_03_register_sum",
        "uncoalesced or redundant accesses: one thread per output, with its accumulator in a register and "
        "adjacent threads that read adjacent pixels, is {times:.2g} times as fast",
    ),
    (
        "ladder_04_shared_memory",
        "shared memory: every pixel is read from global memory once per tap; a copy of image and filter in "
        "shared memory is {times:.2g} times as fast",
    ),
    (
        "ladder_06_block_per_image",
        "copies: an image is read again for every filter; a block that computes all filters of an image is "
        "{times:.2g} times as fast",
    ),
    (
        "ladder_07_array_of_outputs",
        "reads for each multiplication: once read, a pixel can be multiplied by a tap of every filter, with "
        "an array of accumulators in registers, which is {times:.2g} times as fast",
    ),
    (
        "ladder_09_constants",
        "addresses: if every size is a constant, the compiler needs no division and reads four taps at once, "
        "which is {times:.2g} times as fast",
    ),
    (
        "ladder_13_winograd",
        "multiplications: Winograd's algorithm needs a third of them, which is {times:.2g} times as fast",
    ),
)
