"""Map blocks to records on one machine: processes decode, and a session for each card and side computes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnxruntime

from convswap.errors import ConvswapError
from convswap.evaluation.normaliser import normaliser
from convswap.evaluation.parts import Decoded, Part, decode, start_process
from convswap.evaluation.records import SIDES, Record, record_of
from convswap.evaluation.samples import Block, Samples
from convswap.graph.external_weights import SplitModel
from convswap.inputs.feeds import Feeds
from convswap.runtime.device import Device
from convswap.runtime.sessions import Side, make_session, run_named
from convswap.runtime.values import Arrays, RunFeeds, is_number

# The scores (n, classes) of a block's samples by one side, and the seconds that its runs took.
SideResult = tuple[np.ndarray, float]


@dataclass(frozen=True, eq=False)
class Job:
    """An evaluation, ready to be computed.

    `table` has the value of each pixel 0..255 of each channel, for an input `input_name` of images.
    `fixed_batch` is the batch that the model is fixed to, or None.
    """

    samples: Samples
    models: Mapping[str, SplitModel]
    sides: Mapping[str, Side]
    device: Device
    batch: int
    fixed_batch: int | None
    input_name: str
    table: np.ndarray

    def runs(self, decoded: Decoded | str) -> Iterator[tuple[Feeds, int]]:
        """Yield each run's feeds, pixels for images, and number of samples that count; it may be padded."""
        block: Decoded = np.load(decoded, mmap_mode="r") if isinstance(decoded, str) else decoded
        if not isinstance(block, np.ndarray):
            yield from block
            return
        for start in range(0, len(block), self.batch):
            pixels = block[start : start + self.batch]
            count = len(pixels)
            if self.fixed_batch is not None and count < self.fixed_batch:
                pixels = pixels[np.minimum(np.arange(self.fixed_batch), count - 1)]
            yield {self.input_name: pixels}, count

    def record(self, block: Block, results: Sequence[SideResult], times: Mapping[str, float]) -> Record:
        """Return the record of `block`, given the results of both sides and the other times."""
        labels = None if self.samples.labels is None else self.samples.labels[block.start : block.stop]
        scores = {side: scores for side, (scores, _) in zip(SIDES, results, strict=True)}
        seconds = {side: seconds for side, (_, seconds) in zip(SIDES, results, strict=True)}
        return record_of(block, scores, labels, {**times, **seconds})


def _scores(outputs: Arrays, samples: int) -> np.ndarray:
    """Return the scores (samples, classes) in the first output with numbers."""
    name, values = next(((name, values) for name, values in outputs.items() if is_number(values)), ("", None))
    # Some classifiers end in a pooling, which leaves dimensions of 1.
    if values is None or values.ndim < 2 or values.shape[1] < 2 or any(n != 1 for n in values.shape[2:]):
        shape = [] if values is None else list(values.shape)
        raise ConvswapError(
            f"output {name!r} has shape {shape}; expected scores [batch, classes] of a classifier: use "
            "`convswap compare` for other models"
        )
    return values.reshape(values.shape[:2])[:samples]


class _Decoder:
    """One decoding process, with one block at a time; a thread of this process if `in_process`."""

    def __init__(self, in_process: bool) -> None:
        self._in_process = in_process
        self._start()

    def _start(self) -> None:
        # The process ends when the sender is closed, also by the end of this process.
        self._receiver, self._sender = multiprocessing.Pipe(duplex=False)
        self._executor: Executor = ThreadPoolExecutor(1)
        if not self._in_process:
            spawn = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(1, spawn, start_process, (self._receiver,))

    def submit(self, part: Part, path: str) -> Future[tuple[Decoded | str, float]]:
        try:
            return self._executor.submit(decode, part, path)
        except BrokenProcessPool:  # The process was killed.
            self.close()
            self._start()
            return self._executor.submit(decode, part, path)

    def close(self) -> None:
        self._sender.close()
        self._executor.shutdown(cancel_futures=True)
        self._receiver.close()


class Lane:
    """The sessions of one card, with a thread for each side and for each of two blocks."""

    def __init__(self, job: Job, card: int) -> None:
        self._job = job
        options = {"device_id": str(card)} if job.device.name == "cuda" else {}
        self._sessions = [
            make_session(job.models[name], job.sides[name].with_options(options), job.device)
            for name in SIDES
        ]
        self._normalise = normaliser(job.table, job.device, card) if job.table.size else None
        self._sides = [ThreadPoolExecutor(1) for _ in SIDES]
        # One block is computed while pixels of the other are copied.
        self._blocks = ThreadPoolExecutor(2)

    def submit(self, decoded: Decoded | str) -> Future[list[SideResult]]:
        """Start the runs of both sides; two blocks take turns, and others wait."""
        return self._blocks.submit(self._results, decoded)

    def _results(self, decoded: Decoded | str) -> list[SideResult]:
        runs = []
        for feeds, samples in self._job.runs(decoded):
            values: RunFeeds = feeds
            if self._normalise is not None:
                values = {name: self._normalise(pixels) for name, pixels in feeds.items()}
            pairs = zip(self._sides, self._sessions, strict=True)
            started = [thread.submit(_run, session, values, samples) for thread, session in pairs]
            runs.append([future.result() for future in started])
        return [
            (np.concatenate([scores for scores, _ in results]), sum(seconds for _, seconds in results))
            for results in zip(*runs, strict=True)
        ]

    def close(self) -> None:
        """End the threads after the runs that they are in."""
        for thread in (*self._sides, self._blocks):
            thread.shutdown(cancel_futures=True)


def _run(session: onnxruntime.InferenceSession, feeds: RunFeeds, samples: int) -> SideResult:
    start = time.perf_counter()
    outputs = run_named(session, feeds)
    return _scores(outputs, samples), time.perf_counter() - start


def records(
    job: Job, blocks: Sequence[Block], processes: int, cards: int
) -> Generator[tuple[Block, Record], None, None]:
    """Yield each of `blocks`, which are in order, with its record, as they are done.

    At most one block for each decoding process and two for each card are in memory. A block whose decoding
    process was killed is decoded again, once. `processes` 0 decodes in a thread of this process. There is one
    card on the CPU.

    Raises:
        ConvswapError: a sample cannot be decoded, a run fails, or two processes ended with the same block.
    """
    if not blocks:
        return
    todo = zip(blocks, job.samples.parts(blocks), strict=True)
    decoding: dict[Future[tuple[Decoded | str, float]], tuple[_Decoder, str, Block, Part]] = {}
    computing: dict[Future[list[SideResult]], tuple[Lane, str, Block, float]] = {}
    repeated: list[Block] = []
    with ExitStack() as stack:
        # /dev/shm does not limit these files. They are closed last, since paths may become another file's.
        files = [os.fdopen(os.memfd_create("convswap-pixels")) for _ in range(max(processes, 1) + 2 * cards)]
        paths = [f"/proc/{os.getpid()}/fd/{stack.enter_context(file).fileno()}" for file in files]
        idle = [_Decoder(not processes) for _ in range(max(processes, 1))]
        waited = 0.0
        for decoder in idle:
            stack.callback(decoder.close)

        def start_decoding() -> None:
            while idle and paths and (following := next(todo, None)):
                decoder, path = idle.pop(), paths.pop()
                decoding[decoder.submit(following[1], path)] = (decoder, path, *following)

        # The first blocks are decoded while sessions are made.
        start_decoding()
        with ThreadPoolExecutor(cards) as makers:
            lanes = list(makers.map(partial(Lane, job), range(cards)))
        for lane in lanes:
            stack.callback(lane.close)
        while decoding or computing:
            start, is_idle = time.perf_counter(), not computing
            wait(list[Future[Any]]([*decoding, *computing]), return_when=FIRST_COMPLETED)
            waited += is_idle * (time.perf_counter() - start)
            for results in [future for future in computing if future.done()]:
                _, path, block, seconds = computing.pop(results)
                paths.append(path)
                times = {"decoding": seconds, "waiting": waited, "repeated_blocks": block in repeated}
                waited = 0.0
                yield block, job.record(block, results.result(), times)
            for future in [future for future in decoding if future.done()]:
                decoder, path, block, part = decoding.pop(future)
                try:
                    decoded, seconds = future.result()
                except BrokenProcessPool:
                    if block in repeated:
                        raise _ended_twice(
                            [job.samples.names[i] for i in (block.start, block.stop - 1)]
                        ) from None
                    repeated.append(block)
                    decoding[decoder.submit(part, path)] = (decoder, path, block, part)
                    continue
                idle.append(decoder)
                lane = min(lanes, key=lambda lane: sum(lane is other for other, *_ in computing.values()))
                computing[lane.submit(decoded)] = (lane, path, block, seconds)
            start_decoding()


def _ended_twice(names: Sequence[str | int]) -> ConvswapError:
    return ConvswapError(
        f"two processes ended while they decoded images {names[0]} to {names[1]}: give fewer --processes if "
        'memory is short; in a program, call evaluate under `if __name__ == "__main__":`'
    )
