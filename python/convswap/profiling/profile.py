"""Profile a model: the time of its kernels, copies and API calls, and the nodes that launch them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.graph.algorithms import check_algorithm
from convswap.graph.names import node_names
from convswap.graph.serialisation import to_proto
from convswap.graph.swap import DEFAULT_PRECISION, PRECISIONS, swap_to_run
from convswap.inputs.feeds import declared_inputs
from convswap.inputs.model_with_data import UserModel, open_model_with_data, source_of
from convswap.inputs.sample_shapes import InputShape, shape_notes, shape_notes_on_error
from convswap.inputs.user_inputs import UserInputs
from convswap.profiling.cupti_collector import connect
from convswap.profiling.recording import record
from convswap.profiling.records import KERNEL, RUN, Collector
from convswap.profiling.result import Profile, Timeline, sides_of, timeline_of
from convswap.progress import Progress, silent
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.library import OpLibraries, using_op_libraries
from convswap.runtime.packages import cupti_version, why_no_cupti_for
from convswap.runtime.sessions import AGAINST, DEFAULT, Side, convswap_side, other_sides


def profile(
    model: UserModel,
    *,
    data: str | None = None,
    images: int | None = None,
    batch: int | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = "auto",
    only: str | None = None,
    fuse: bool = False,
    against: str | None = None,
    runs: int | None = None,
    resident: bool = False,
    input_shape: InputShape | None = None,
    inputs: UserInputs | None = None,
    op_libraries: OpLibraries = (),
    progress: Progress | None = None,
) -> Profile:
    """Run `model` with its Convs swapped on the first card under CUPTI; return the time of each kernel.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        data: "fashion-mnist", "synthetic" or "random"; the default depends on the model, as for `compare`.
        images: how many samples of the data to load; a run takes the first batch of them.
        batch: how many samples a run takes; by default as for `compare`.
        precision: "tf32" or "ieee", for the swapped Convs.
        algorithm: the name of an algorithm of the catalog, "auto", or "tuned".
        only: a regular expression; Convs whose name it does not match are not swapped.
        fuse: whether to fuse Convs with the nodes behind them.
        against: "default" to profile the default provider too, "all" for its other options for Conv as well.
        runs: how many runs to record; by default 20, or fewer if they take seconds.
        resident: leave inputs and outputs on the card, as `compare` does. By default every run copies its
            inputs from the host and its outputs back, as an ordinary program does.
        input_shape: the shape of one sample if the model leaves it open, as for `compare`.
        inputs: the values of the model's inputs, instead of `data`, as for `compare`.
        op_libraries: files with custom ops of others that the model needs.
        progress: called with a few words at the start of every step.

    Raises:
        ConvswapError: there is no card, or no CUPTI that may be used; an argument is not known or out of
            range; the model cannot be read, swapped or run; or the data do not fit it.
    """
    if against is not None and against not in AGAINST:
        raise unknown_name("choice of sides", against, AGAINST)
    # Reading the model and the data may take a minute, so the card is checked first.
    device, collector = connected_card(precision, runs)
    report = progress or silent
    with using_op_libraries(op_libraries):
        report("reading the model and the data")
        tested = open_model_with_data(model, data, input_shape, inputs)
        source = source_of(tested, images, batch, device)
        shape_arguments = declared_inputs(tested.model), source.inputs, source.batch
        swapping = swap_to_run(tested.model, algorithm=algorithm, precision=precision, only=only, fuse=fuse)
        check_algorithm(algorithm, device.name)
        models: dict[Side, onnx.ModelProto] = {
            convswap_side(device, precision): _with_node_names(swapping.model)
        }
        if against is not None:
            others = (DEFAULT, *other_sides(device, against))
            models = {**dict.fromkeys(others, _with_node_names(tested.plain)), **models}
        feeds = source.first(source.batch)
        with shape_notes_on_error(*shape_arguments):
            recording = record(
                models, feeds, device, collector, runs=runs, resident=resident, progress=report
            )
    report("sorting the records")
    timeline = timeline_of(recording)
    return Profile(
        model=tested.title,
        device=device,
        precision=precision,
        options={
            "data": tested.dataset,
            "algorithm": algorithm,
            "precision": precision,
            "only": only,
            "fuse": fuse,
            "against": against,
            "resident": resident,
            "provider_options": {side.name: dict(side.provider_options) for side in models},
        },
        environment={**environment(device), "cupti": cupti_version()},
        dataset=tested.dataset,
        batch=source.batch,
        sides=sides_of(timeline),
        timeline=timeline,
        notes=(
            *(f"not swapped: {left.op} {left.node}: {left.reason}" for left in swapping.not_swapped),
            *shape_notes(*shape_arguments),
            *_notes(timeline),
        ),
    )


def connected_card(precision: str, runs: int | None) -> tuple[Device, Collector]:
    """Return the card that a profile runs on, and its collector.

    Raises:
        ConvswapError: an argument is not known or out of range, there is no card, or no CUPTI that may be
            used.
    """
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    require_count("runs", runs)
    return profiled_card(), connect()


def profiled_card() -> Device:
    """Return the card; raise ConvswapError if there is none, or its driver is too old for CUPTI."""
    device = choose_device()
    if device.name != "cuda":
        raise ConvswapError(f"profiling needs an NVIDIA card: {device.reason}; see `convswap doctor`")
    if reason := why_no_cupti_for(str((device.card or {}).get("driver_cuda", ""))):
        raise ConvswapError(reason)
    return device


def _notes(timeline: Timeline) -> Iterator[str]:
    if timeline.recording.long_kernels:
        yield (
            "kernels were recorded one after the other, since long kernels took most of the time; short "
            "kernels seem up to 2.4 us longer"
        )
    without_node = sum(
        attributed.node is None
        and attributed.activity.kind == KERNEL
        and attributed.window is not None
        and attributed.window.phase == RUN
        for attributed in timeline.activities
    )
    if without_node:
        yield f"{without_node} kernels were started outside all nodes, and are listed under (no node)"
    if not timeline.activities:
        yield (
            "CUPTI recorded no work of the card at all; on a virtual card or under WSL it may have to be "
            "allowed"
        )


def _with_node_names(model: ir.Model) -> onnx.ModelProto:
    """Return `model` with its nodes named by `node_names`, except for the nodes of functions."""
    copy = model.clone()
    for node, name in node_names(copy).items():
        node.name = name
    return to_proto(copy)
