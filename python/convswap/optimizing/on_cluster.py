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
from convswap.runtime.cluster import connected
from convswap.runtime.device import choose_device
from convswap.runtime.library import using_op_libraries

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

    The result is that of the kind whose model is written. If none is, and one was selected, the result is
    that of a kind on which the best is not faster, or its outputs differ. Notes name the speedup on each.

    Raises:
        ConvswapError: as for `optimize`; or the cluster has no card, or cannot be used.
    """
    options.check()
    check_model_target(output)
    sent: _Sent = model if model in ALL_NETWORKS else split_model(load_model(model))
    progress("starting workers")
    with connected(address, "cuda") as cluster:
        workers, sent = cluster.kinds(), cluster.ray.put(sent)

        def on_each(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
            calls = {
                kind: workers[kind].run.remote(function, sent, options, arguments[kind]) for kind in arguments
            }
            return {kind: cluster.result(call) for kind, call in calls.items()}

        progress(f"optimizing on {', '.join(workers)}")
        by_kind = on_each(_optimized, dict.fromkeys(workers))
        results = {kind: replace(result, model=model) for kind, (result, _) in by_kind.items()}
        models = {kind: swapped for kind, (_, swapped) in by_kind.items() if swapped is not None}
        if not models:
            return next(iter(results.values()))
        _share_tuning_lines([swapped.message for swapped in models.values()])
        checked = {}
        for kind, swapped in models.items():
            progress(f"checking the model of {kind} on the others")
            others = {other: (swapped, results[other]) for other in workers if other != kind}
            checked[kind] = results | on_each(_checked, others)
        best = max(checked, key=lambda kind: _merit(checked[kind]))
        worst = min(checked[best].values(), key=lambda result: _merit({"": result}))
        notes = [
            f"the model selected on {best} is {times_faster(result.speedup or 1.0)} as fast as the original "
            f"on {kind}, and its outputs {'agree' if result.answers_agree else 'differ'}"
            for kind, result in checked[best].items()
        ]
        if not _merit(checked[best])[0]:
            return replace(worst, notes=(*worst.notes, *notes))
        optimization = replace(results[best], notes=(*results[best].notes, *notes))
        try:
            # Within the connection, since the weights are in Ray's shared memory.
            save_model(models[best].to_model(), output, source=None if model in ALL_NETWORKS else model)
        except ConvswapError as error:
            return replace(optimization, not_written=str(error))
        return replace(optimization, written=Path(output))


def _merit(results: Mapping[str, Optimization]) -> tuple[bool, float]:
    """Return whether a model is faster everywhere with outputs that agree, and its speedups' product."""
    are_good = all(result.gains and result.answers_agree for result in results.values())
    return are_good, math.prod(result.speedup or 1.0 for result in results.values())


def _share_tuning_lines(models: list[onnx.ModelProto]) -> None:
    """Give each node the tuning lines of the nodes of its name; a card uses only lines with its own name."""
    nodes = [node for model in models for node in model.graph.node if node.domain == DOMAIN]
    lines: dict[str, dict[str, None]] = {}
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name == "tuned":
                lines.setdefault(node.name, {}).update(dict.fromkeys(attribute.s.decode().splitlines()))
    for node in nodes:
        if node.name in lines:
            others = [attribute for attribute in node.attribute if attribute.name != "tuned"]
            del node.attribute[:]
            shared = onnx.helper.make_attribute("tuned", "\n".join(lines[node.name]))
            node.attribute.extend([*others, shared])


@contextmanager
def _opened(sent: _Sent, options: OptimizeOptions) -> Iterator[UserModel]:
    with tempfile.TemporaryDirectory(prefix="convswap-") as folder, using_op_libraries(options.op_libraries):
        if isinstance(sent, SplitModel):
            path = Path(folder) / "model.onnx"
            save_model(sent.to_model(), path)
            yield path
        else:
            yield sent


def _optimized(sent: _Sent, options: OptimizeOptions, _: None) -> tuple[Optimization, SplitModel | None]:
    """Return the result of this process's device, and the model if it is to be written."""
    with _opened(sent, options) as model:
        optimization, swapping = optimize_unwritten(model, options, silent)
        return optimization, None if swapping is None else split_model(swapping.model)


def _checked(sent: _Sent, options: OptimizeOptions, other: tuple[SplitModel, Optimization]) -> Optimization:
    """Return the result of this process's device with the times and errors of another's model."""
    swapped, result = other
    quantised = any((node.domain, node.op_type) == (DOMAIN, QUANT_OP) for node in swapped.message.graph.node)
    with _opened(sent, options) as model:
        prepared = prepare(model, options, choose_device(options.device))
        candidate = swapped_elsewhere(prepared, swapped, quantised=quantised)
    return replace(
        result,
        whole=candidate.times,
        errors=candidate.errors,
        reference=candidate.reference,
        answers_agree=candidate.outputs_agree,
    )
