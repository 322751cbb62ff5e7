"""Gives damaged files to everything that reads a user's files: each is read, or refused with ConvswapError.

    python tools/fuzz.py --reader params --seeds 0:10000

Case n of a reader damages one of its samples with the random seed n, and reads the result in a process of its
own. It fails on any other exception, a crash, 5 s without an end (--seconds), or memory that runs out 1 GiB
above what the process began with; also on a message that is not one line of printable text, and on output
beside it. A failure is printed with its seed and traceback, and nothing is kept: the seed gives the same file
again.
$CONVSWAP_DATA adds real files, and so gives other cases for the same seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import gzip
import hashlib
import json
import os
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import helpers_of_tests  # noqa: F401
import numpy as np
import onnx
import swap_models as models
from alexnet_files import npy_of_python_2, npy_of_this_numpy
from convswap.data import datasets
from convswap.data.fetch import PinnedFile
from convswap.errors import ConvswapError
from convswap.export import read_alexnet, read_mini_dnn, read_mxnet
from convswap.export.pickled_arrays import read_pickled_arrays
from convswap.graph.swap import swap
from mini_dnn_files import random_layers, weights_bytes
from mutations import (
    damage_bytes,
    damage_counted_layers,
    damage_gzip,
    damage_json,
    damage_npy,
    damage_protobuf,
)
from mxnet_files import ELEMENT_TYPES, LAYOUTS, SymbolWriter, params_bytes
from onnx import TensorProto

SECONDS = 5.0
MEMORY_BYTES = 1 << 30


@dataclass(frozen=True)
class Sample:
    """Intact files by name, and what reads them in the folder that they are in."""

    files: dict[str, bytes]
    read: Callable[[Path], object]


@dataclass(frozen=True)
class Reader:
    """Makes its samples; each case damages one of those files whose names end in `damaged`."""

    samples: Callable[[], list[Sample]]
    damaged: str | tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """`kind` is "read", "refused" or "failed"; `detail` the error's message or what went wrong."""

    kind: str
    detail: str = ""
    seconds: float = 0.0
    bytes: int = 0


DAMAGE: dict[str, Callable[[bytes, Random], bytes]] = {
    ".gz": damage_gzip,
    ".json": damage_json,
    ".mini-dnn": damage_counted_layers,
    ".npy": damage_npy,
    ".onnx": lambda content, random: damage_protobuf(content, random, onnx.ModelProto),
}


# The data sets


def idx_samples() -> list[Sample]:
    """Five images and their labels, sealed with hashes of their own, and the real test split."""
    random = np.random.default_rng(5)
    pixels = _idx_gz(random.integers(0, 256, (5, 28, 28), np.uint8))
    labels = _idx_gz(random.integers(0, 10, 5, np.uint8))
    split = datasets.FASHION_MNIST["test"]
    samples = [_idx_sample({split.pixels.name: pixels, split.labels.name: labels}, 5)] * 30
    real = _data_folder("fashion-mnist")
    if real is not None:
        files = {file.name: (real / file.name).read_bytes() for file in (split.pixels, split.labels)}
        samples.append(_idx_sample(files, split.images))
    return samples


def _idx_gz(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes(), mtime=0)


def _idx_sample(files: dict[str, bytes], images: int) -> Sample:
    pixels, labels = files

    def read(folder: Path) -> None:
        # The hashes of what is there now, or every damage would end at the comparison of the hashes.
        home = folder / "fashion-mnist"
        split = datasets.FashionMnistSplit(_pinned(home / pixels), _pinned(home / labels), images)
        datasets.FASHION_MNIST["test"] = split
        os.environ["CONVSWAP_DATA"] = str(folder)
        loaded = datasets.load("fashion-mnist", image_size=30)
        assert loaded.images.shape == (images, 1, 30, 30), loaded.images.shape
        assert loaded.labels is not None and loaded.labels.shape == (images,), loaded.labels

    return Sample({f"fashion-mnist/{name}": content for name, content in files.items()}, read)


def _pinned(path: Path) -> PinnedFile:
    content = path.read_bytes()
    return PinnedFile(path.name, len(content), hashlib.sha256(content).hexdigest())


# MXNet checkpoints


def mxnet_samples() -> list[Sample]:
    """A course network in every layout and element type, one with the other operators, and the real ones."""
    samples = []
    course = SymbolWriter().add("New", "conv", ["w0"], kernel="(3, 3)", num_filter=2)
    course.add("Activation", "act", act_type="tanh")
    course.add("Pooling", "pool", kernel="(2,2)", stride="(2,2)", pool_type="max")
    course.add("Flatten", "flat")
    course.add("FullyConnected", "fc", ["w1"], num_hidden=3, no_bias=True)
    course.add("SoftmaxOutput", "softmax", ["label"])
    for layout in LAYOUTS:
        for dtype in ELEMENT_TYPES:
            # So small that damage seldom falls on numbers, where any byte is right.
            arrays = {"w0": np.ones((2, 1, 3, 3), dtype), "w1": np.ones((3, 8), dtype)}
            samples.append(_mxnet_sample(course, params_bytes(arrays, layout), image_size=6))
    shapes = {"w0": (4, 1, 3, 2), "b0": (4,), "w1": (7, 3), "b1": (7,)}
    params = params_bytes({name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    for key in ("attrs", "attr", "param"):
        other = SymbolWriter(key)
        window = {"kernel": "(3, 2)", "stride": "(2, 1)", "pad": "(1, 0)", "dilate": "(1, 2)"}
        other.add("Convolution", "conv", ["w0", "b0"], num_filter=4, num_group=1, layout="NCHW", **window)
        other.add("Pooling", "pool", kernel="(3, 3)", stride="(2, 2)", pad="(1, 1)", pool_type="avg")
        other.add("Reshape", "joined", shape="(0, -3, -2)")
        other.add("Reshape", "rows", shape="(0, -1, 3)")
        other.add("FullyConnected", "fc", ["w1", "b1"], num_hidden=7, flatten=False)
        samples += [_mxnet_sample(other, params, image_size=12)] * 7
    real = _data_folder("ece408-2019sp")
    if real is not None:
        for name in ("ece408", "baseline"):
            symbol, params = real / f"{name}-symbol.json", real / f"{name}-0002.params"
            samples.append(_checkpoint_sample(symbol.read_bytes(), params.read_bytes(), image_size=48))
    return samples


def _mxnet_sample(network: SymbolWriter, params: bytes, image_size: int) -> Sample:
    return _checkpoint_sample(json.dumps(network.document()).encode(), params, image_size)


def _checkpoint_sample(symbol: bytes, params: bytes, image_size: int) -> Sample:
    def read(folder: Path) -> None:
        model = read_mxnet(folder / "net-symbol.json", folder / "net-0001.params", image_size)
        onnx.checker.check_model(model, full_check=True)

    return Sample({"net-symbol.json": symbol, "net-0001.params": params}, read)


# mini-dnn weights


def mini_dnn_samples() -> list[Sample]:
    """One file: all have the same size and counts."""
    return [Sample({"weights.mini-dnn": weights_bytes(random_layers())}, _read_mini_dnn)]


def _read_mini_dnn(folder: Path) -> None:
    onnx.checker.check_model(read_mini_dnn(folder / "weights.mini-dnn"), full_check=True)


# AlexNet's weights


def alexnet_samples() -> list[Sample]:
    """Small arrays in every element type and order, as every Python has pickled them."""
    samples = []
    for dtype in ("<f2", "<f4", "<f8", ">f4"):
        for order in ("C", "F"):
            weight = np.ones((3, 3, 2, 4), dtype, order=order)
            layers = {"conv1": [weight, np.zeros(4, dtype)], "fc6": [np.ones((5, 2), dtype)]}
            samples += [
                Sample({"weights.npy": write(layers)}, read_weights)
                for write in (npy_of_this_numpy, npy_of_python_2)
            ]
    return samples


def read_weights(folder: Path) -> None:
    """Read arrays of any shape; as AlexNet's they must be refused, being too few."""
    file = folder / "weights.npy"
    layers = read_pickled_arrays(file, "weights")
    assert all(array.dtype == np.float32 for arrays in layers.values() for array in arrays)
    try:
        read_alexnet(file)
    except ConvswapError:
        return
    raise AssertionError("these are not AlexNet's")


# ONNX models


def onnx_samples() -> list[Sample]:
    """The models of the swap tests, those with a Conv that onnx ships, and ones that are costly to read."""
    made = [
        models.two_convs(),
        models.empty_bias(),
        models.unnamed_convs(),
        models.conv_in_if(),
        models.conv_in_loop(),
        models.conv_in_nested_functions(),
        models.conv_in_nested_functions(opset=18),
        models.weights_in_a_function(),
        models.function_that_returns_its_input(),
        models.unsupported_convolutions(),
        models.conv_of(TensorProto.DOUBLE, 1, 2, 8, weight_shape=(2, 2, 3)),
        models.mixed_types(),
        models.functions_that_double(4, "Conv"),
        models.functions_that_double(24, "Conv"),
        models.functions_that_double(24, "Relu"),
    ]
    contents = [model.SerializeToString() for model in made] * 4
    shipped = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for pattern in ("pytorch-converted/test_Conv*/model.onnx", "node/test_*conv*/model.onnx"):
        contents += [path.read_bytes() for path in sorted(shipped.glob(pattern))]
    samples = [Sample({"model.onnx": content}, swap_and_save) for content in contents]
    return samples + [external_data_sample()] * 6


def fuse_samples() -> list[Sample]:
    """A model that is fused, once more as it is when it has been swapped already, and one with functions."""
    fusable = models.fusable()
    contents = [fusable.SerializeToString(), swap(fusable).to_proto().SerializeToString()] * 2
    contents.append(models.conv_in_nested_functions().SerializeToString())
    return [Sample({"model.onnx": content}, fuse_and_save) for content in contents]


def external_data_sample() -> Sample:
    """A model with its weights in a file beside it."""
    model = models.two_convs()
    data = b""
    for tensor in model.graph.initializer:
        start = len(data)
        data += tensor.raw_data
        entries = {"location": "weights.bin", "offset": start, "length": len(tensor.raw_data)}
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
    return Sample({"model.onnx": model.SerializeToString(), "weights.bin": data}, swap_and_save)


# Complaints about what was saved, of models in which the checker saw no fault: it does not follow calls, and
# so sees only after inlining that one leaves out an input that an op in the function needs; and it tells a
# function's domain that is empty from one that is absent, which mean the same.
FAULTS_OF_THE_CHECKER = (
    "marked single but has an empty string",
    "Field 'domain' of 'function' is required but missing",
)


def fuse_and_save(folder: Path) -> None:
    """Swap and fuse model.onnx and save it, as `swap_and_save` does."""
    swap_and_save(folder, fuse=True)


def swap_and_save(folder: Path, fuse: bool = False) -> None:
    """Swap model.onnx and save it; what was saved must be readable, and as valid as what was given."""
    given, saved = folder / "model.onnx", folder / "swapped.onnx"
    before = set(folder.iterdir())
    try:
        swap(given, fuse=fuse).save(saved)
    except ConvswapError:
        left = set(folder.iterdir()) - before
        assert not left, f"files were left behind: {left}"
        raise
    try:
        again = swap(saved)
    except ConvswapError as error:
        raise AssertionError("its own output was refused") from error
    # What is not sound may look sound once what precedes it has been fused, and its shape written down.
    assert fuse or again.swapped == (), again.swapped
    if _fault(given) is None:
        fault = _fault(saved)
        assert fault is None or any(known in fault for known in FAULTS_OF_THE_CHECKER), fault


def _fault(model: Path) -> str | None:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        return str(error)
    return None


def _data_folder(name: str) -> Path | None:
    data = os.environ.get("CONVSWAP_DATA")
    return Path(data) / name if data else None


READERS = {
    "idx": Reader(idx_samples, ".gz"),
    "params": Reader(mxnet_samples, ".params"),
    "symbol": Reader(mxnet_samples, ".json"),
    "mini-dnn": Reader(mini_dnn_samples, ".mini-dnn"),
    "alexnet": Reader(alexnet_samples, ".npy"),
    "onnx": Reader(onnx_samples, (".onnx", ".bin")),
    "fuse": Reader(fuse_samples, ".onnx"),
}


# One case


def damaged_sample(reader: Reader, seed: int, samples: list[Sample]) -> Sample:
    """Return the sample of that seed with one of its files damaged."""
    random = Random(seed)
    sample = random.choice(samples)
    names = [name for name in sample.files if name.endswith(reader.damaged)]
    # The first is the one that is read first, and has the most to damage.
    name = names[0] if random.random() < 0.7 else random.choice(names)
    damage = DAMAGE.get(Path(name).suffix, damage_bytes)
    return Sample(sample.files | {name: damage(sample.files[name], random)}, sample.read)


def run_case(sample: Sample, seconds: float = SECONDS) -> Outcome:
    """Read `sample` in a process of its own, with limits of time and memory, and return what came of it."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, tempfile.TemporaryFile() as output:
        folder = Path(name)
        for file, content in sample.files.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content)
        results, result = os.pipe()
        started = time.monotonic()
        worker = os.fork()
        if worker == 0:
            _work(sample, folder, output.fileno(), result)
        os.close(result)
        with os.fdopen(results, "rb") as stream:
            ended = bool(select.select([stream], [], [], seconds)[0])
            if not ended:
                os.kill(worker, signal.SIGUSR1)
                select.select([stream], [], [], 0.2)
                os.kill(worker, signal.SIGKILL)
            answer = stream.read()
        status = os.waitpid(worker, 0)[1]
        output.seek(0)
        printed = output.read().decode(errors="replace")
    outcome = Outcome(**json.loads(answer)) if answer else None
    took = time.monotonic() - started
    if not ended:
        return Outcome("failed", f"no end after {seconds} s\n{printed}", took)
    if outcome is None:
        return Outcome("failed", f"the process ended with status {status:#x}\n{printed}", took)
    if printed and outcome.kind != "failed":
        return Outcome("failed", f"{outcome.kind}, and printed:\n{printed}", took)
    return outcome


def _work(sample: Sample, folder: Path, output: int, result: int) -> None:
    """Be the worker process: write the outcome to `result`, and what is printed to `output`."""
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable(2)
        faulthandler.register(signal.SIGUSR1, 2)
        before = _virtual_memory("VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (before + MEMORY_BYTES, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        started = time.monotonic()
        kind, detail = _read(sample, folder)
        outcome = Outcome(kind, detail, time.monotonic() - started, _virtual_memory("VmPeak") - before)
        os.write(result, json.dumps(vars(outcome)).encode())
    finally:
        os._exit(0)


def _read(sample: Sample, folder: Path) -> tuple[str, str]:
    try:
        sample.read(folder)
    except ConvswapError as error:
        message = str(error)
        if _ran_out_of_memory(error):
            return "failed", "refused only because memory ran out\n" + traceback.format_exc()
        if not message.isprintable() or not message:
            return "failed", f"not one line of printable text: {message!r}\n" + traceback.format_exc()
        return "refused", message
    except BaseException:
        return "failed", traceback.format_exc()
    return "read", ""


def _ran_out_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError):
            return True
        error = error.__context__
    return False


def _virtual_memory(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024


# The tool


def main(arguments: list[str] | None = None) -> int:
    """Run the cases of the command line; return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Give damaged files to a reader.")
    parser.add_argument("--reader", required=True, choices=READERS)
    parser.add_argument("--seeds", required=True, type=_range, metavar="FIRST:END")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"that a case may take; default: {SECONDS:g}"
    )
    parser.add_argument("--verbose", action="store_true", help="print what came of every case")
    options = parser.parse_args(arguments)
    reader = READERS[options.reader]
    samples = reader.samples()
    counts: Counter[str] = Counter()
    slowest, largest = (0.0, 0), (0, 0)
    # Else the collector of every worker would copy the memory that it shares with this process.
    gc.freeze()
    started = time.monotonic()
    done = options.seeds.start
    with contextlib.suppress(KeyboardInterrupt):
        for seed in options.seeds:
            outcome = run_case(damaged_sample(reader, seed, samples), options.seconds)
            done = seed + 1
            counts[outcome.kind] += 1
            slowest = max(slowest, (outcome.seconds, seed))
            largest = max(largest, (outcome.bytes, seed))
            if outcome.kind == "failed":
                print(
                    f"FAILED: --reader {options.reader} --seeds {seed}:{done}\n{outcome.detail}", flush=True
                )
            elif options.verbose:
                print(f"{seed} {outcome.kind} {outcome.detail}", flush=True)
    took = time.monotonic() - started
    print(
        f"{options.reader} {options.seeds.start}:{done}: {counts['read']} read, {counts['refused']} refused, "
        f"{counts['failed']} failed in {took:.0f} s; slowest {slowest[0]:.2f} s (seed {slowest[1]}), "
        f"largest {largest[0] >> 20} MiB (seed {largest[1]})"
    )
    return 1 if counts["failed"] else 0


def _range(text: str) -> range:
    first, end = text.split(":")
    return range(int(first), int(end))


if __name__ == "__main__":
    sys.exit(main())
