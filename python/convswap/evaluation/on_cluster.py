"""Map blocks to records on a Ray cluster: tasks decode, and an actor for each card has its sessions.

These are plain tasks. Ray Data computes on tables, so blocks would become rows and be found again for their
records, and it needs pandas and pyarrow.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from convswap.errors import ConvswapError
from convswap.evaluation.embedded import Job, Lane, SideResult
from convswap.evaluation.parts import Decoded, EncodedImages, Part, decode
from convswap.evaluation.records import Record
from convswap.evaluation.samples import Block
from convswap.graph.external_weights import SplitModel
from convswap.runtime.cluster import Cluster, last_line

# A block that waits for a worker counts as well if the worker ends with another.
_MAX_REPEATS = 3


def decoding_processes(cluster: Cluster) -> int:
    """Return the number of blocks that the cluster decodes at a time: one for each core."""
    return int(cluster.ray.cluster_resources().get("CPU", 1))


def records(
    job: Job, blocks: Sequence[Block], cluster: Cluster
) -> Generator[tuple[Block, Record], None, None]:
    """Yield each of `blocks`, which are in order, with its record, as they are done.

    At most one block for each core and two for each worker are in memory. A block whose process ended, or
    whose node was lost, is done again, and so are those that waited for the process.

    Raises:
        ConvswapError: a sample cannot be decoded, a run fails, or too many processes ended with a block.
    """
    ray = cluster.ray
    samples = replace(job.samples.first(0), parts=lambda _: iter(()))
    models = {name: SplitModel(each.message, each.referenced_weights()) for name, each in job.models.items()}
    shared = ray.put(replace(job, samples=samples, models=models))
    # Blocks are repeated here and not by Ray, which does not tell how often it repeats.
    decoded = ray.remote(num_cpus=1, max_retries=0)(decode)
    limit = decoding_processes(cluster) + 2 * len(cluster.workers)
    todo = zip(blocks, job.samples.parts(blocks), strict=True)
    computing: dict[Any, tuple[Any, Block, Part]] = {}
    repeats = Counter[Block]()
    ended: dict[Any, float] = {}

    def submit(block: Block, part: Part) -> None:
        busy = Counter(worker for worker, *_ in computing.values())
        worker = min(cluster.running(), key=busy.__getitem__)
        if isinstance(part, EncodedImages):
            # Processes of the cluster are in other folders.
            part = replace(part, folder=str(Path(part.folder).absolute()))
        # Ray would replace a reference that is no element of a list by its value, in each call.
        computing[worker.run.remote(_compute, [shared], decoded.remote(part))] = (worker, block, part)

    while True:
        for following in islice(todo, limit - len(computing)):
            submit(*following)
        if not computing:
            return
        (done, *_), _ = ray.wait(list(computing))
        worker, block, part = computing.pop(done)
        try:
            results, decoding, start, end = cluster.result(done)
        except ray.exceptions.RayError as error:
            repeats[block] += 1
            if repeats[block] > _MAX_REPEATS:
                first, last = (job.samples.names[index] for index in (block.start, block.stop - 1))
                raise ConvswapError(
                    f"{repeats[block]} processes of the Ray cluster ended with images {first} to {last}: "
                    f"{last_line(error)}"
                ) from error
            if isinstance(error, ray.exceptions.RayActorError):
                cluster.restart(worker)
            submit(block, part)
            continue
        waited = max(start - ended.get(worker, start), 0.0)
        ended[worker] = end
        times = {"decoding": decoding, "waiting": waited, "repeated_blocks": block in repeats}
        yield block, job.record(block, results, times)


# A worker copies the pixels of one block while it computes another; both may be its first.
_making_lane = Lock()


def _lane(shared: Any) -> Lane:
    """Return the sessions of this process, made at the first block."""
    with _making_lane:
        return _made_lane(shared)


@cache
def _made_lane(shared: Any) -> Lane:
    import ray

    # Ray shows a worker only its own card.
    return Lane(ray.get(shared), card=0)


def _compute(
    shared: Sequence[Any], decoded: tuple[Decoded, float]
) -> tuple[list[SideResult], float, float, float]:
    """Return both sides' results of a block, the seconds of decoding, and when the runs began and ended."""
    lane, (samples, seconds) = _lane(shared[0]), decoded
    start = time.perf_counter()
    results = lane.submit(samples).result()
    return results, seconds, start, time.perf_counter()
