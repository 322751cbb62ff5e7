"""Evaluate both sides of a model on a whole data set: accuracy, agreement and the largest differences."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convswap.data.pictures import PICTURE_MODES
from convswap.errors import ConvswapError, as_path, is_integer, require_count, unknown_name
from convswap.evaluation import embedded, on_cluster
from convswap.evaluation.embedded import Job
from convswap.evaluation.parts import Framing
from convswap.evaluation.records import SIDES, TOPS, KeptRecords, Record, merged
from convswap.evaluation.samples import Block, Samples, file_samples, named_samples
from convswap.graph.algorithms import check_algorithm
from convswap.graph.external_weights import as_split
from convswap.graph.swap import DEFAULT_PRECISION, swap_to_run
from convswap.inputs.feeds import Input, checked_batch, declared_inputs, input_shapes
from convswap.inputs.model_with_data import DATA, UserModel, open_model_with_data, source_of
from convswap.inputs.sample_shapes import InputShape, shape_notes, with_sample_shapes
from convswap.inputs.user_input_files import Numbers, image_input, pixel_table
from convswap.models.networks import RANDOM
from convswap.output.files import finite
from convswap.progress import Progress, silent
from convswap.runtime.cards import cuda_cards
from convswap.runtime.cluster import Cluster, connected
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.sessions import DEFAULT, convswap_side

SCHEMA = 1
IMAGENET = "imagenet"
PREPROCESSES = ("none", IMAGENET)
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_DEFAULT_BATCH = 64
# A block has at least as many samples, in whole batches: 39 MB of ImageNet's pixels.
_BLOCK_SAMPLES = 256


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `evaluate`, which have the meaning of the command's.

    `processes` 0 decodes in a thread. `ray` is the address of a Ray cluster, or "local". The other defaults
    are those of `compare`.
    """

    labels: str | os.PathLike[str] | None = None
    images: int | None = None
    batch: int | None = None
    device: str | None = None
    precision: str = DEFAULT_PRECISION
    algorithm: str = "auto"
    fuse: bool = False
    layout: str | None = None
    against: str = "default"
    preprocess: str = "none"
    mean: Numbers | None = None
    std: Numbers | None = None
    scale: float | None = None
    input_shape: InputShape | None = None
    processes: int | None = None
    resume: str | os.PathLike[str] | None = None
    ray: str | None = None

    def check(self) -> None:
        """Raise ConvswapError for an option that is wrong for every model and data set."""
        if self.against != "default":
            raise unknown_name("choice of sides", self.against, ["default"])
        if self.preprocess not in PREPROCESSES:
            raise unknown_name("preprocessing", self.preprocess, PREPROCESSES)
        if self.processes is not None and not (is_integer(self.processes) and self.processes >= 0):
            raise ConvswapError(
                f"processes must be a whole number from 0 on, but {self.processes!r} was given; 0 decodes in "
                "a thread"
            )
        if self.ray is not None and self.processes is not None:
            raise ConvswapError("processes have no meaning beside ray; leave one of them out")
        require_count("images", self.images)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The outcome of an evaluation; `values` has the keys of the JSON, which docs/use.md lists."""

    job: Job
    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap evaluate --json` writes; an infinite number becomes None.

        All but "run" is the same for any number of decoding processes, on a Ray cluster of such devices, and
        for an evaluation that was resumed.
        """
        return finite(self.values)


def evaluate(
    model: UserModel, data: str | os.PathLike[str], *, progress: Progress = silent, **options: Any
) -> Evaluation:
    """Run a classifier on a whole data set, with the default provider and with its Convs swapped.

    Processes decode the images. In a program, they import its main module again, so the call belongs under
    `if __name__ == "__main__":`.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        data: a folder of images, a Parquet file or a folder of them, or the name of a data set.
        progress: called with a few words at every step.
        options: the fields of `EvaluateOptions`.

    Raises:
        ConvswapError: an option is out of range, the model is no classifier, the data do not fit, or the
            folder `resume` has results of another evaluation.
    """
    chosen = EvaluateOptions(**options)
    chosen.check()
    if chosen.ray is not None:
        progress("starting workers")
    with nullcontext() if chosen.ray is None else connected(chosen.ray, chosen.device) as cluster:
        progress("reading the model and the data")
        name = str(as_path(data, "a folder, a Parquet file or a name"))
        job, values = _prepared(model, name, chosen, cluster)
        record, run = _computed(job, chosen, values, cluster, progress)
    return Evaluation(job, {**values, **_results(job, record), "run": run})


def _prepared(
    model: UserModel, data: str, options: EvaluateOptions, cluster: Cluster | None
) -> tuple[Job, dict[str, Any]]:
    """Return the job, and the JSON that is known before its results."""
    device = choose_device(options.device) if cluster is None else cluster.device
    tested = open_model_with_data(model, data if data in DATA else RANDOM, options.input_shape)
    inputs = with_sample_shapes(declared_inputs(tested.model), options.input_shape)
    fixed = checked_batch(inputs, options.batch)
    batch = fixed or options.batch or _DEFAULT_BATCH
    if data in DATA:
        file_options = (options.labels, options.mean, options.std, options.scale)
        if options.preprocess != "none" or any(option is not None for option in file_options):
            raise ConvswapError(
                f"data set {data} takes no labels, preprocess, mean, std or scale; leave them out"
            )
        samples = named_samples(data, source_of(tested, options.images, batch, device))
        table: np.ndarray = np.zeros((0, 256))
    else:
        samples, table = _file_samples(data, inputs, options)
    swapping = swap_to_run(
        tested.model,
        algorithm=options.algorithm,
        precision=options.precision,
        fuse=options.fuse,
        layout=options.layout,
        batch=batch,
    )
    check_algorithm(options.algorithm, device.name)
    models = {"default": as_split(tested.plain), "convswap": as_split(swapping.model)}
    sides = {"default": DEFAULT, "convswap": convswap_side(device, options.precision)}
    job = Job(samples, models, sides, device, batch, fixed, inputs[0].name if inputs else "", table)
    notes = [*shape_notes(declared_inputs(tested.model), inputs, batch), *swapping.notes_on(device.name)]
    if device.name == "cpu" and device.reason != "asked for":
        notes.append(f"on the CPU, against the default CPU provider: {device.reason}")
    if samples.class_names and data not in DATA:
        notes.append(
            f"the folders are the classes from 0 to {len(samples.class_names) - 1}, in the order of names"
        )
    named = ("precision", "algorithm", "fuse", "layout", "against", "preprocess")
    return job, {
        "schema": SCHEMA,
        "model": tested.title,
        "device": device.name,
        "options": {
            "batch": batch,
            **{name: getattr(options, name) for name in named},
            "input_shapes": {name: list(shape) for name, shape in input_shapes(inputs, batch).items()},
        },
        "environment": environment(device) if cluster is None else cluster.environment,
        "dataset": samples.title,
        "swapped": tested.swapped_before + len(swapping.swapped),
        "left": [{"node": left.node, "reason": left.reason} for left in swapping.not_swapped],
        "notes": notes,
    }


def _file_samples(data: str, inputs: Sequence[Input], options: EvaluateOptions) -> tuple[Samples, np.ndarray]:
    """Return the samples of files, and the value of each pixel 0..255 of each channel."""
    input_ = image_input(inputs)
    _, channels, height, width = input_shapes(inputs, 1)[input_.name]
    mean = 0.0 if options.mean is None else options.mean
    std = 1.0 if options.std is None else options.std
    is_imagenets = options.preprocess == IMAGENET
    if is_imagenets:
        if (mean, std) != (0.0, 1.0) or channels != len(_IMAGENET_MEAN):
            raise ConvswapError(
                f"preprocess {IMAGENET} sets mean and std of 3 channels; leave out it, or mean and std"
            )
        mean, std = _IMAGENET_MEAN, _IMAGENET_STD
    labels = None if options.labels is None else os.fspath(options.labels)
    framing = Framing(PICTURE_MODES[channels], height, width, is_imagenets)
    table = pixel_table(input_, mean, std, options.scale)
    return file_samples(Path(data), labels, framing).first(options.images), table


def _computed(
    job: Job,
    options: EvaluateOptions,
    known: Mapping[str, Any],
    cluster: Cluster | None,
    report: Progress,
) -> tuple[Record, dict[str, Any]]:
    """Return the record of all samples, and the JSON about this run."""
    count, size = len(job.samples.names), job.batch * -(-_BLOCK_SAMPLES // job.batch)
    blocks = [Block(i, start, min(start + size, count)) for i, start in enumerate(range(0, count, size))]
    done: dict[Block, Record] = {}
    store = None
    if options.resume is not None:
        store = KeptRecords(
            as_path(options.resume, "the path of a folder for results"), _key(job, known, size)
        )
        done = store.load(blocks)
    missing = [block for block in blocks if block not in done]
    kept = sum(record.counts["samples"] for record in done.values())
    if cluster is None:
        processes, cards = _processes(job, options.processes, len(missing)), _cards(job.device)
        records = embedded.records(job, missing, processes, cards)
    else:
        processes, cards = on_cluster.decoding_processes(cluster), len(cluster.workers)
        records = on_cluster.records(job, missing, cluster)
    run: dict[str, Any] = {"processes": processes, "cards": cards, "kept_blocks": len(done), "seconds": 0.0}
    report(f"evaluating {count - kept:,} of {count:,} images")
    start, images, told = time.perf_counter(), kept, -1
    # An error here ends the processes at once, and not when its traceback is forgotten.
    with closing(records):
        for block, record in records:
            done[block] = record
            if store is not None:
                store.save(block, record)
            images, run["seconds"] = images + record.counts["samples"], time.perf_counter() - start
            # A line for each hundredth at most: standard error may be a file.
            if 100 * images // count > told:
                told, rate = 100 * images // count, (images - kept) / run["seconds"]
                report(f"evaluated {images:,} of {count:,} images, {rate:,.0f} a second")
    spent = merged(done[block] for block in missing).run
    # The shares of a run without blocks are 0.
    shares = {name: value / (run["seconds"] or math.inf) for name, value in spent.items()}
    run |= {
        "images": images - kept,
        "images_per_second": (images - kept) / (run["seconds"] or math.inf),
        "repeated_blocks": int(spent.get("repeated_blocks", 0)),
        "decoding": shares.get("decoding", 0.0) / max(processes, 1),
        "computing": {side: shares.get(side, 0.0) / cards for side in SIDES},
        "waiting": shares.get("waiting", 0.0),
    }
    return merged(done[block] for block in blocks), run


def _processes(job: Job, processes: int | None, blocks: int) -> int:
    """Return the number of decoding processes; none if there is nothing to decode."""
    cores = len(os.sched_getaffinity(0)) if job.table.size else 0
    return min(cores if processes is None else processes, blocks)


def _results(job: Job, record: Record) -> dict[str, Any]:
    counts, images = record.counts, record.counts["samples"]
    having = images - counts["without_class"]
    is_labelled = job.samples.labels is not None
    return {
        "images": images,
        **{
            f"top{top}_accuracy": {
                side: counts[f"{side}_top{top}"] / images if is_labelled else None for side in SIDES
            }
            for top in TOPS
        },
        "top1_agreement": counts["agreeing"] / having if having else None,
        "counts": dict(counts),
        "largest_differences": [
            {"name": str(job.samples.names[item.sample]), **item._asdict()} for item in record.largest
        ],
    }


def _cards(device: Device) -> int:
    if device.name == "cpu":
        return 1
    from convswap import _native

    return len(cuda_cards(_native))


def _key(job: Job, known: Mapping[str, Any], block: int) -> dict[str, Any]:
    """Return what the records depend on; the first that differs is named."""
    versions, samples, model = known["environment"], job.samples, hashlib.sha256()
    for split in job.models.values():
        model.update(split.message.SerializeToString(deterministic=True))
        for values in split.referenced_weights().values():
            model.update(np.ascontiguousarray(values).data)
    labels = b"" if samples.labels is None else samples.labels.tobytes()
    return {
        **known["options"],
        "device": job.device.title,
        "onnxruntime": versions["onnxruntime"],
        "convswap": versions["convswap"],
        "model": model.hexdigest(),
        "images": len(samples.names),
        "data": samples.identity,
        "labels": hashlib.sha256(labels).hexdigest(),
        "normalisation": hashlib.sha256(job.table.tobytes()).hexdigest(),
        "block": block,
    }
