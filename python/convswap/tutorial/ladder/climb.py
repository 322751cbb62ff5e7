"""Runs every rung of the ladder on a course network, and measures times, errors and the kernels' launches.

On the card a rung computes all images in one batch, in ONNX Runtime sessions on one stream: one session for
each convolution, with its inputs in the network, and one for the network. Times are measured by CUDA events:
the median of `back_to_back.ROUNDS` rounds of runs. The rungs on the CPU take seconds instead of milliseconds.
They run once on 500 images, and their times are scaled to all images.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
import onnxruntime
from onnx import helper

from convswap import _native
from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.graph.domain import DOMAIN, DOMAIN_VERSION
from convswap.graph.swap import DEFAULT_PRECISION, swap
from convswap.inputs.feeds import Source
from convswap.inputs.model_with_data import ModelWithData, no_labels_error, open_model_with_data, source_of
from convswap.models import NETWORKS
from convswap.progress import Progress, silent
from convswap.reference.evaluation import evaluate
from convswap.reference.metrics import REFERENCE_IMAGES, TOLERANCES, relative_l2_error, top1_classes
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.layers import Capture, ConvLayer, conv_layers
from convswap.runtime.onnxruntime_errors import plain_errors
from convswap.runtime.sessions import CONVSWAP, BoundRun, make_session, on_device, run
from convswap.timing.floor import floor_ms
from convswap.timing.gpu_timer import GpuTimer
from convswap.timing.sampler import BACK_TO_BACK, measure, sample_of
from convswap.tutorial.ladder.rows import Ladder, MeasuredRung, Row, RungLayer
from convswap.tutorial.ladder.rung_texts import Page, read_pages

Arrays = Mapping[str, np.ndarray]

DEFAULT_NETWORK = "ece408-2017-high"
# The default batch, which is that of the course's reports.
IMAGES = 10_000
CPU_IMAGES = 500
# Shorter bursts than usual: about fifty sessions then take a minute.
RULE = replace(BACK_TO_BACK, burst_ms=30.0)
# All rungs have the same floor, that of the precision of the last rungs.
FLOOR_PRECISION = "tf32"


def session_of(
    layer: ConvLayer, ranks: Mapping[str, int], device: Device, options: Mapping[str, str]
) -> onnxruntime.InferenceSession:
    """Return a session with only this layer; `options` are added to the provider's options."""
    return make_session(
        layer.model(ranks, swapped=True), CONVSWAP.with_options(options), device, only_device=True
    )


def unfused_session(
    layer: ConvLayer, ranks: Mapping[str, int], device: Device, options: Mapping[str, str], algorithm: str
) -> onnxruntime.InferenceSession:
    """Return a session with the nodes that a fused layer replaces: Conv by `algorithm`, and ONNX's ops."""
    split = layer.model(ranks, swapped=False)
    model = split.message
    model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
    conv = model.graph.node[0]
    conv.domain = DOMAIN
    conv.attribute.append(helper.make_attribute("algorithm", algorithm))
    precision = layer.setting("precision", DEFAULT_PRECISION)
    conv.attribute.append(helper.make_attribute("precision", precision))
    return make_session(split, CONVSWAP.with_options(options), device)


def reference_of(layer: ConvLayer, fed: Arrays) -> np.ndarray:
    """Return the layer's output for the inputs `fed`, in float64."""
    ranks = {name: values.ndim for name, values in fed.items()}
    output: np.ndarray = evaluate(layer.model(ranks, swapped=False), fed).outputs[0]
    return output


def climb(
    network: str = DEFAULT_NETWORK,
    *,
    data: str | None = None,
    images: int | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Ladder:
    """Run every rung on the convolutions of `network`; return the results.

    Args:
        network: the name of one of the course's networks.
        data: "fashion-mnist" or "synthetic"; by default Fashion-MNIST if it is available.
        images: the images of a run on the card, and the number that all times are for; by default 10,000 of
            Fashion-MNIST.
        device: "cuda" or "cpu"; by default the GPU if there is one. With "cpu" the CUDA rungs are left out.
        progress: called with a few words before every rung.

    Raises:
        ConvswapError: an argument is unknown or out of range, the data are missing, the device cannot be
            used, or its memory is too small.
    """
    if network not in NETWORKS:
        raise unknown_name("course network", network, NETWORKS)
    require_count("images", images)
    pages = read_pages()
    selected_device = choose_device(device)
    report = progress or silent
    report("reading the network and the images")
    tested = open_model_with_data(network, data)
    few = min(CPU_IMAGES, images or CPU_IMAGES)
    setups = {"cpu": _Setup.of(tested, few, Device("cpu", "asked for"))}
    if selected_device.name == "cuda":
        setups["cuda"] = _Setup.of(tested, images, selected_device)
    all_images = setups["cuda"].source.images if selected_device.name == "cuda" else images or IMAGES
    rows: list[Row] = []
    for page in pages:
        if page.device not in setups:
            rows.append(Row(page, TOLERANCES[page.precision], why_not="it runs on a card"))
            continue
        report(f"rung {page.number} of {len(pages)}: {page.title}")
        previous = next((row.page.name for row in reversed(rows) if row.measured is not None), "auto")
        rows.append(setups[page.device].climb(page, all_images, previous))
    ladder = Ladder(
        network, selected_device, environment(selected_device), all_images, tested.dataset, tuple(rows)
    )
    return replace(ladder, notes=tuple(_notes(ladder)))


@dataclass
class _Setup:
    """The inputs on one device: those of the network, `feeds`, and those of its convolutions, `inputs`.

    Both are for all images of `source`. `reference_inputs` has the convolutions' inputs for a few images, on
    the host, and `references` caches the outputs for these in float64, by layer.
    """

    device: Device
    tested: ModelWithData
    source: Source
    timer: GpuTimer | None
    feeds: Mapping[str, onnxruntime.OrtValue]
    inputs: Mapping[str, onnxruntime.OrtValue]
    reference_inputs: Mapping[str, np.ndarray]
    references: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, tested: ModelWithData, images: int | None, device: Device) -> _Setup:
        source = source_of(tested, images, images or IMAGES, device)
        if source.labels is None:
            raise no_labels_error(tested.dataset)
        swapped = swap(tested.model).model
        layers = conv_layers(swapped)
        capture = Capture(swapped, layers, device)
        feeds = on_device(source.first(source.images), device)
        few = on_device(source.first(min(REFERENCE_IMAGES, source.images)), device)
        inputs: dict[str, onnxruntime.OrtValue] = {}
        reference_inputs: dict[str, np.ndarray] = {}
        for layer in layers:
            inputs |= capture.inputs(layer, feeds)
            reference_inputs |= {name: value.numpy() for name, value in capture.inputs(layer, few).items()}
        timer = GpuTimer() if device.name == "cuda" else None
        return cls(device, tested, source, timer, feeds, inputs, reference_inputs)

    def climb(self, page: Page, all_images: int, previous: str) -> Row:
        """Measure a rung and return its row; `previous` is the algorithm of the rung before."""
        tolerance = TOLERANCES[page.precision]
        swapped = swap(
            self.tested.model, algorithm=page.name, precision=page.precision, fuse=page.fuses
        ).model
        layers = conv_layers(swapped)
        for layer in layers:
            problem = layer.problem(self._shapes(layer))
            if reason := _native.why_not(problem, page.name, self.device.name):
                return Row(page, tolerance, why_not=f"{layer.name}: {reason}")
        scale = all_images / self.source.images
        network_ms, accuracy = self._network(swapped)
        measured = MeasuredRung(
            layers=tuple(self._layer(layer, page, scale, previous) for layer in layers),
            network_ms=network_ms * scale,
            accuracy=accuracy,
            timed_images=self.source.images,
        )
        return Row(page, tolerance, measured)

    def _network(self, swapped: ir.Model) -> tuple[float, float | None]:
        """Return the milliseconds of the network and its top-1 accuracy on the images of the run."""
        session = make_session(swapped, CONVSWAP.with_options(self._options), self.device)
        bound = BoundRun(session, self.feeds, self.device)
        milliseconds = self._time(bound)
        classes = top1_classes(bound.values()[0].numpy())
        labels = self.source.labels
        return milliseconds, None if labels is None else float(np.mean(classes == labels))

    def _layer(self, layer: ConvLayer, page: Page, scale: float, previous: str) -> RungLayer:
        shapes = self._shapes(layer)
        ranks = {name: len(shape) for name, shape in shapes.items()}
        fed = {name: self.inputs[name] for name in layer.input_names}
        session = session_of(layer, ranks, self.device, self._options)
        bound = BoundRun(session, fed, self.device)
        op_ms = self._time(bound)
        problem = layer.problem(shapes)
        y = run(session, {name: self.reference_inputs[name] for name in layer.input_names})[0]
        apart_ms = None
        if layer.fused:
            del bound, session
            unfused = unfused_session(layer, ranks, self.device, self._options, previous)
            apart_ms = self._time(BoundRun(unfused, fed, self.device)) * scale
        explained = _native.explain(problem, self.device.name, page.name)
        return RungLayer(
            node=layer.name,
            op_ms=op_ms * scale,
            bytes=int(problem.bytes * scale),
            operations=int(problem.operations * scale),
            floor_ms=floor_ms(problem, self.device.card, FLOOR_PRECISION),
            relative_l2_error=relative_l2_error(y, self._reference(layer)),
            kernels=tuple(explained["kernels"] or ()),
            fused=layer.fused,
            apart_ms=apart_ms,
        )

    def _reference(self, layer: ConvLayer) -> np.ndarray:
        key = layer.name, layer.node.op_type
        if key not in self.references:
            self.references[key] = reference_of(
                layer, {name: self.reference_inputs[name] for name in layer.input_names}
            )
        return self.references[key]

    def _shapes(self, layer: ConvLayer) -> dict[str, tuple[int, ...]]:
        return {name: tuple(self.inputs[name].shape()) for name in layer.input_names}

    @property
    def _options(self) -> Mapping[str, str]:
        return {} if self.timer is None else self.timer.provider_options

    def _time(self, bound: BoundRun) -> float:
        """Return the milliseconds of a run: many runs by CUDA events on the card, one run on the CPU."""
        with _memory():
            if self.timer is not None:
                return measure({"": sample_of(bound, self.timer)}, RULE)[""].median
            start = time.perf_counter()
            bound.once()
            return (time.perf_counter() - start) * 1e3


@contextmanager
def _memory() -> Iterator[None]:
    """Add advice to a run's error, for the case that memory is too small."""
    try:
        with plain_errors("ONNX Runtime cannot run the model"):
            yield
    except ConvswapError as error:
        raise ConvswapError(f"{error}; if memory is short, give fewer --images") from error


def _notes(ladder: Ladder) -> Iterator[str]:
    device, rows, images = ladder.device, ladder.rows, ladder.images
    scaled = [row for row in rows if row.measured is not None and row.measured.timed_images != images]
    if scaled:
        numbers = ", ".join(str(row.page.number) for row in scaled)
        count = min(CPU_IMAGES, images)
        yield (
            f"rung {numbers} ran once, on {count} images on the CPU; its times are scaled to {images:,} "
            f"images, and its accuracy is that of the {count}"
        )
    if device.name == "cpu":
        cuda_rungs = sum(row.page.device == "cuda" for row in rows)
        why = "the CPU was asked for" if device.reason == "asked for" else device.reason
        yield f"{cuda_rungs} rungs are CUDA kernels, which need a card: {why}"
    for row in rows:
        if row.why_not and device.name == "cuda":
            yield f"rung {row.page.number} was left out: {row.why_not}"
        if row.measured is not None and (replaced := ladder.replaced_ms(row)) is not None:
            ops = ", ".join(
                f"{layer.node}: {' and '.join(layer.fused)}" for layer in row.measured.layers if layer.fused
            )
            yield (
                f"rung {row.page.number} also computes the ops after the convolution ({ops}); it is compared "
                f"with the rung before and those ops of ONNX Runtime, {replaced:.3g} ms together"
            )
