"""Optimise a model for all kinds of cards in a Ray cluster, as one file.

One card of each kind optimises the model. A model that one kind selected is timed and checked on all others,
with the tuning lines of all. The file is the model with the best mean speedup among those that are faster
everywhere.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from convswap.errors import ConvswapError
from convswap.graph.domain import DOMAIN, QUANT_OP
from convswap.graph.external_weights import SplitModel, split_model
from convswap.graph.model_file import check_model_target, load_model, save_model
from convswap.inputs.model_with_data import UserModel
from convswap.models.networks import ALL_NETWORKS
from convswap.optimizing.end_to_end import swapped_elsewhere
from convswap.optimizing.optimize import optimize_unwritten
from convswap.optimizing.preparation import OptimizeOptions, prepare
from convswap.optimizing.result import Optimization
from convswap.output.tables import times_faster
from convswap.progress import Progress, silent
from convswap.runtime.cluster import Cluster, connected
from convswap.runtime.device import choose_device
from convswap.runtime.library import using_op_libraries

_TUNED = "tuned"
# A network's name, or a model with its weights.
_Sent = str | SplitModel


def optimize_on_cluster(
    address: str,
    model: str,
    output: str | os.PathLike[str],
    options: OptimizeOptions,
    progress: Progress = silent,
) -> Optimization:
    """Optimise `model` on the Ray cluster at `address`, and write one file for all its kinds of cards.

    The result is that of the kind whose model is written, with a note for each kind. If no model is faster on
    all kinds with outputs that agree, it has the times of a kind that refuses the best model.

    Raises:
        ConvswapError: as for `optimize`; or the cluster has no card, or cannot be used.
    """
    options.check()
    check_model_target(output)
    sent: _Sent = model if model in ALL_NETWORKS else split_model(load_model(model))
    progress("starting workers")
    with connected(address, "cuda") as cluster:
        workers = {f"{name} ({number / 10:.1f})": each for (name, number), each in cluster.kinds().items()}
        optimization, swapped = best_of_all(cluster, workers, sent, options, progress)
    optimization = replace(optimization, model=model)
    if swapped is None:
        return optimization
    try:
        save_model(swapped.to_model(), output, source=None if model in ALL_NETWORKS else model)
    except ConvswapError as error:
        return replace(optimization, not_written=str(error))
    return replace(optimization, written=Path(output))


def best_of_all(
    cluster: Cluster, workers: Mapping[str, Any], sent: _Sent, options: OptimizeOptions, progress: Progress
) -> tuple[Optimization, SplitModel | None]:
    """Return the result, and the model to write if there is one; `workers` has one of each kind of card."""
    model = cluster.ray.put(sent)

    def on_each(function: Any, arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        pending = {kind: workers[kind].run.remote(function, model, *arguments[kind]) for kind in arguments}
        return {kind: cluster.result(result) for kind, result in pending.items()}

    progress(f"optimizing on {', '.join(workers)}")
    found = on_each(_optimized, {kind: (options,) for kind in workers})
    own = {kind: optimization for kind, (optimization, _) in found.items()}
    models = {kind: swapped for kind, (_, swapped) in found.items() if swapped is not None}
    _share_tuning_lines([swapped.message for swapped in models.values()])
    results = {}
    for kind, swapped in models.items():
        progress(f"checking the model of {kind} on the others")
        others = {other: (swapped, options, own[other]) for other in workers if other != kind}
        results[kind] = {kind: own[kind], **on_each(_checked, others)}
    if not results:
        return next(iter(own.values())), None
    best = max(results, key=lambda kind: _merit(results[kind]))
    by_kind = {kind: results[best][kind] for kind in workers}
    notes = [
        f"the model selected on {best} is {times_faster(each.speedup or 1.0)} as fast as the original on "
        f"{kind}, and its outputs {'agree' if each.answers_agree else 'differ'}"
        for kind, each in by_kind.items()
    ]
    worst = min(by_kind.values(), key=lambda each: (_qualifies(each), each.speedup or 0.0))
    if _qualifies(worst):
        return replace(own[best], notes=(*own[best].notes, *notes)), models[best]
    return (
        replace(
            own[best],
            whole=worst.whole,
            errors=worst.errors,
            reference=worst.reference,
            answers_agree=worst.answers_agree,
            notes=(*own[best].notes, *notes),
        ),
        None,
    )


def _qualifies(optimization: Optimization) -> bool:
    return optimization.gains and optimization.answers_agree


def _merit(by_kind: Mapping[str, Optimization]) -> tuple[bool, float]:
    speedups = [optimization.speedup or 1.0 for optimization in by_kind.values()]
    return all(map(_qualifies, by_kind.values())), math.prod(speedups)


def _share_tuning_lines(models: list[onnx.ModelProto]) -> None:
    """Give each node the tuning lines of the nodes of its name; a card uses only lines with its own name."""
    nodes = [node for model in models for node in model.graph.node if node.domain == DOMAIN]
    tuned = [
        (node.name, attribute) for node in nodes for attribute in node.attribute if attribute.name == _TUNED
    ]
    lines: dict[str, dict[str, None]] = {}
    for name, attribute in tuned:
        lines.setdefault(name, {}).update(dict.fromkeys(attribute.s.decode().splitlines()))
    for node in nodes:
        if node.name in lines:
            kept = [attribute for attribute in node.attribute if attribute.name != _TUNED]
            del node.attribute[:]
            shared = onnx.helper.make_attribute(_TUNED, "\n".join(lines[node.name]))
            node.attribute.extend([*kept, shared])


@contextmanager
def _opened(sent: _Sent) -> Iterator[UserModel]:
    if isinstance(sent, str):
        yield sent
        return
    with tempfile.TemporaryDirectory(prefix="convswap-") as folder:
        path = Path(folder) / "model.onnx"
        save_model(sent.to_model(), path)
        yield path


def _optimized(sent: _Sent, options: OptimizeOptions) -> tuple[Optimization, SplitModel | None]:
    """Return the result of this process's device, and the model if it is to be written."""
    with _opened(sent) as model, using_op_libraries(options.op_libraries):
        optimization, swapping = optimize_unwritten(model, options, silent)
        return optimization, None if swapping is None else split_model(swapping.model)


def _checked(sent: _Sent, swapped: SplitModel, options: OptimizeOptions, own: Optimization) -> Optimization:
    """Return `own`, the result of this process's device, with the times and errors of another's model."""
    quantised = any(node.domain == DOMAIN and node.op_type == QUANT_OP for node in swapped.message.graph.node)
    with _opened(sent) as model, using_op_libraries(options.op_libraries):
        prepared = prepare(model, options, choose_device(options.device))
        found = swapped_elsewhere(prepared, swapped, quantised=quantised)
    return replace(
        own,
        whole=found.times,
        errors=found.errors,
        reference=found.reference,
        answers_agree=found.outputs_agree,
    )
