"""What `convswap bench` is asked to time, checked before anything is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convswap.errors import ConvswapError, batch_sizes, unknown_name
from convswap.graph.algorithms import check_algorithm
from convswap.runtime.device import Device, choose_device
from convswap.timing.single_node import LONE_PRECISIONS
from convswap.timing.suites import SuiteLayer, suite_layers, usual_batch


@dataclass(frozen=True)
class BenchRequest:
    """Layers and batches to time on a device; `precision` is one of `LONE_PRECISIONS`.

    `batches` are those that were asked for; none: of each layer its own in `runs`.
    """

    layers: tuple[SuiteLayer, ...]
    batches: tuple[int, ...]
    runs: tuple[tuple[SuiteLayer, int], ...]
    precision: str
    algorithm: str
    device: Device


def bench_request(
    suite: str,
    layers: str | None,
    batches: int | Sequence[int] | None,
    precision: str,
    algorithm: str,
    device: str | None,
) -> BenchRequest:
    """Return the request, with the arguments of `run_suite`.

    Raises:
        ConvswapError: a name is not known, no layer matches, a batch is out of range or given twice, or the
            device cannot be used or has no such algorithm.
    """
    if precision not in LONE_PRECISIONS:
        raise unknown_name("precision", precision, LONE_PRECISIONS)
    check_algorithm(algorithm)
    chosen = choose_device(device)
    sizes = () if batches is None else batch_sizes(batches)
    check_algorithm(algorithm, chosen.name)
    for batch in sizes:
        if sizes.count(batch) > 1:
            raise ConvswapError(f"batch {batch} was given more than once; give each size once")
    wanted = tuple(suite_layers(suite, layers))
    runs = (
        tuple((layer, usual_batch(suite, layer, chosen.name)) for layer in wanted)
        if batches is None
        else tuple((layer, batch) for batch in sizes for layer in wanted)
    )
    return BenchRequest(wanted, sizes, runs, precision, algorithm, chosen)
