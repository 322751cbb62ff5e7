"""The counters that are read of a kernel, and what they say to its author.

Their names are those of Nsight Compute; every card from compute capability 7.5 on has them.
"""

from __future__ import annotations

from collections.abc import Mapping

SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
SHARED_READS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
ACTIVE_WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
ACTIVE_THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
ARITHMETIC = "sm__throughput.avg.pct_of_peak_sustained_elapsed"

# What each counts, in the order of a report.
MEANINGS: Mapping[str, str] = {
    SECTORS: "sectors of 32 bytes for each read of a warp: 4 where neighbours read neighbouring floats",
    SHARED_READS: "reads of shared memory, 32 floats at once",
    CONFLICTS: "of these, reads that waited since two threads wanted the same bank",
    ACTIVE_WARPS: "% of the places for warps that were taken",
    ACTIVE_THREADS: "of a warp's 32 threads, those that took part in an instruction",
    MEMORY: "% of the memory's speed",
    ARITHMETIC: "% of the multiprocessors' speed",
}
NAMES = tuple(MEANINGS)

# Beyond these a counter alone is reason enough for a hint.
_MANY_SECTORS = 8.0
_MANY_CONFLICTS = 0.25
_FEW_THREADS = 24.0


def counted_hint(counters: Mapping[str, float]) -> str:
    """Return the hint that the counters give; "" where none stands out."""
    if counters.get(SECTORS, 0.0) > _MANY_SECTORS:
        return (
            f"uncoalesced: a warp's read touches {counters[SECTORS]:.1f} sectors of 32 bytes, and 4 would "
            "do. Let threadIdx.x count along the rows of x and y: rung 3 (docs/tutorial/ladder.md)."
        )
    reads = counters.get(SHARED_READS, 0.0)
    if reads > 0 and counters.get(CONFLICTS, 0.0) > _MANY_CONFLICTS * reads:
        share = counters[CONFLICTS] / reads
        return (
            f"shared memory: {share:.0%} of its reads wait for a bank that another thread reads. Give rows "
            "an odd length, or let neighbours read neighbours: rung 9 (docs/tutorial/ladder.md)."
        )
    if 0 < counters.get(ACTIVE_THREADS, 32.0) < _FEW_THREADS:
        return (
            f"idle threads: of a warp's 32 threads {counters[ACTIVE_THREADS]:.1f} take part in an "
            "instruction. Let blocks be flat, and their threads take outputs by number: rung 5 "
            "(docs/tutorial/ladder.md)."
        )
    return ""
