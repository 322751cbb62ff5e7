"""Give damaged files to every reader of users' files: each must be read, or refused with ConvswapError.

    python tools/fuzz.py --reader params --seeds 0:10000

Case n of a reader damages one of its samples with the random seed n, and reads the result in a separate
process. A case fails on any other exception, on a crash, after 5 s (--seconds), and if it allocates more than
1 GiB. It also fails if the message is not one line of printable text, or if anything else is
printed. A failure is printed with its traceback and its seed, which makes the same file again.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import gzip
import hashlib
import itertools
import json
import os
import resource
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import helpers_of_tests  # noqa: F401
import mutations
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
from mxnet_files import ELEMENT_TYPES, LAYOUTS, SymbolWriter, course_symbol, params_bytes
from onnx import TensorProto

SECONDS = 5.0
MEMORY_BYTES = 1 << 30


class Sample(NamedTuple):
    """Intact files by name, and a function that reads them from a folder."""

    files: dict[str, bytes]
    read: Callable[[Path], object]


def idx_samples() -> list[Sample]:
    """Return a data set of five images and their labels."""
    split = datasets.FASHION_MNIST["test"]
    pixels, labels = (f"fashion-mnist/{file.name}" for file in (split.pixels, split.labels))

    def pinned(path: Path) -> PinnedFile:
        content = path.read_bytes()
        return PinnedFile(path.name, len(content), hashlib.sha256(content).hexdigest())

    def read(folder: Path) -> None:
        # Hashes of the damaged files: otherwise each case would end at the comparison of hashes.
        changed = datasets.FashionMnistSplit(pinned(folder / pixels), pinned(folder / labels), 5)
        datasets.FASHION_MNIST["test"] = changed
        os.environ["CONVSWAP_DATA"] = str(folder)
        loaded = datasets.load("fashion-mnist", image_size=30)
        assert loaded.images.shape == (5, 1, 30, 30), loaded.images.shape
        assert loaded.labels is not None and loaded.labels.shape == (5,), loaded.labels

    def idx_gz(array: np.ndarray) -> bytes:
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        return gzip.compress(header + array.tobytes(), mtime=0)

    random = np.random.default_rng(5)
    images = random.integers(0, 256, (5, 28, 28), np.uint8)
    return [Sample({pixels: idx_gz(images), labels: idx_gz(random.integers(0, 10, 5, np.uint8))}, read)]


def mxnet_samples() -> list[Sample]:
    """Return a course network in every layout and element type, and one with the other operators."""

    samples = []
    # Small arrays: damage of numbers tests nothing, because every byte is valid.
    shapes = {"conv0_weight": (4, 1, 3, 3), "fc0_weight": (10, 4), "fc0_bias": (10,)}
    for layout, dtype in itertools.product(LAYOUTS, ELEMENT_TYPES):
        arrays = {name: np.ones(shape, dtype) for name, shape in shapes.items()}
        samples.append(_checkpoint(course_symbol(), params_bytes(arrays, layout), image_size=5))
    shapes = {"w0": (4, 1, 3, 2), "b0": (4,), "w1": (7, 3), "b1": (7,)}
    params = params_bytes({name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    window = {"kernel": "(3, 2)", "stride": "(2, 1)", "pad": "(1, 0)", "dilate": "(1, 2)"}
    for key in ("attrs", "attr", "param"):
        other = SymbolWriter(key)
        other.add("Convolution", "conv", ["w0", "b0"], num_filter=4, num_group=1, layout="NCHW", **window)
        other.add("Pooling", "pool", kernel="(3, 3)", stride="(2, 2)", pad="(1, 1)", pool_type="avg")
        other.add("Reshape", "joined", shape="(0, -3, -2)").add("Reshape", "rows", shape="(0, -1, 3)")
        other.add("FullyConnected", "fc", ["w1", "b1"], num_hidden=7, flatten=False)
        samples += [_checkpoint(other, params, image_size=12)] * 7
    return samples


def _checkpoint(network: SymbolWriter, params: bytes, image_size: int) -> Sample:
    def read(folder: Path) -> None:
        model = read_mxnet(folder / "net-symbol.json", folder / "net-0001.params", image_size)
        onnx.checker.check_model(model, full_check=True)

    symbol = json.dumps(network.document()).encode()
    return Sample({"net-symbol.json": symbol, "net-0001.params": params}, read)


def mini_dnn_samples() -> list[Sample]:
    """Return one file, since all have the same size and counts."""

    def read(folder: Path) -> None:
        onnx.checker.check_model(read_mini_dnn(folder / "weights.mini-dnn"), full_check=True)

    return [Sample({"weights.mini-dnn": weights_bytes(random_layers())}, read)]


def alexnet_samples() -> list[Sample]:
    """Return small arrays of every element type and order, pickled as by Python 2 and by this Python."""

    def read(folder: Path) -> None:
        file = folder / "weights.npy"
        layers = read_pickled_arrays(file, "weights")
        assert all(array.dtype == np.float32 for arrays in layers.values() for array in arrays)
        try:
            read_alexnet(file)
        except ConvswapError:
            return
        raise AssertionError("two layers were taken for AlexNet's weights")

    samples = []
    for dtype, order in itertools.product(("<f2", "<f4", "<f8", ">f4"), ("C", "F")):
        weight = np.ones((3, 3, 2, 4), dtype, order=order)
        layers = {"conv1": [weight, np.zeros(4, dtype)], "fc6": [np.ones((5, 2), dtype)]}
        samples += [Sample({"weights.npy": npy_of_this_numpy(layers)}, read)]
        samples += [Sample({"weights.npy": npy_of_python_2(layers)}, read)]
    return samples


def onnx_samples() -> list[Sample]:
    """Return models of the swap tests, some of them slow to read, and onnx's test models with a Conv."""
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
    return samples + external_samples() * 6


def external_samples() -> list[Sample]:
    """Return a model with external weights."""
    with tempfile.TemporaryDirectory() as folder:
        models.save_with_external_data(Path(folder))
        return [Sample({file.name: file.read_bytes() for file in Path(folder).iterdir()}, swap_and_save)]


def fuse_samples() -> list[Sample]:
    """Return a model with fusable nodes, the same model swapped, and a model with functions."""
    fusable, functions = models.fusable(), models.conv_in_nested_functions()
    made = [fusable, swap(fusable).to_proto()] * 2 + [functions]
    fuse_and_save = partial(swap_and_save, fuse=True)
    return [Sample({"model.onnx": model.SerializeToString()}, fuse_and_save) for model in made]


# Faults that onnx's checker reports for the saved model only. It does not follow calls, so it misses an input
# that a call leaves out. It distinguishes a function's empty domain from an absent domain.
FAULTS_OF_THE_CHECKER = (
    "marked single but has an empty string",
    "Field 'domain' of 'function' is required but missing",
)


def swap_and_save(folder: Path, fuse: bool = False) -> None:
    """Swap model.onnx and save it; the saved model must be readable, and valid if the original is."""
    original, saved = folder / "model.onnx", folder / "swapped.onnx"
    before = set(folder.iterdir())
    try:
        swap(original, fuse=fuse).save(saved)
    except ConvswapError:
        assert set(folder.iterdir()) == before, f"files were left behind: {set(folder.iterdir()) - before}"
        raise
    try:
        again = swap(saved)
    except ConvswapError as error:
        raise AssertionError("its own output was refused") from error
    # A refused Conv may be swapped the second time, because fusing its predecessor wrote down its shape.
    assert fuse or again.swapped == (), again.swapped
    fault = _fault(saved)
    if fault and not any(known in fault for known in FAULTS_OF_THE_CHECKER):
        assert _fault(original), fault


def _fault(model: Path) -> str:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        return str(error)
    return ""


class Reader(NamedTuple):
    """A reader's samples, and the damage of a case: to a file whose name ends in `ending`."""

    samples: Callable[[], list[Sample]]
    ending: str
    damage: Callable[[bytes, Random], bytes]

    def damaged(self, samples: list[Sample], seed: int) -> Sample:
        """Return one of the samples with one file damaged."""
        random = Random(seed)
        sample = random.choice(samples)
        name = random.choice([name for name in sample.files if name.endswith(self.ending)])
        return Sample(sample.files | {name: self.damage(sample.files[name], random)}, sample.read)


READERS = {
    "idx": Reader(idx_samples, ".gz", mutations.damage_gzip),
    "params": Reader(mxnet_samples, ".params", mutations.damage_bytes),
    "symbol": Reader(mxnet_samples, ".json", mutations.damage_json),
    "mini-dnn": Reader(mini_dnn_samples, ".mini-dnn", mutations.damage_counted_layers),
    "alexnet": Reader(alexnet_samples, ".npy", mutations.damage_npy),
    "onnx": Reader(onnx_samples, ".onnx", mutations.damage_onnx),
    "external": Reader(external_samples, ".bin", mutations.damage_bytes),
    "fuse": Reader(fuse_samples, ".onnx", mutations.damage_onnx),
}


def run_case(sample: Sample, seconds: float = SECONDS) -> tuple[str, str]:
    """Read `sample` in a separate process, with limits of time and memory.

    Returns the outcome and a text: "read" and "", "refused" and the message, or "failed" and a description.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-") as folder,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as result,
    ):
        for name, content in sample.files.items():
            file = Path(folder, name)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        worker = os.fork()
        if worker == 0:
            _work(sample, Path(folder), seconds, output.fileno(), result.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        output.seek(0)
        result.seek(0)
        printed, result_json = output.read().decode(errors="replace"), result.read()
    if not result_json:
        return "failed", f"the process ended with status {status}\n{printed}"
    kind, detail = json.loads(result_json)
    if printed and kind != "failed":
        return "failed", f"{kind}, and printed:\n{printed}"
    return kind, detail


def _work(sample: Sample, folder: Path, seconds: float, output: int, result: int) -> None:
    """Run the worker process: write the outcome to `result`, and all printed text to `output`."""
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable(2)
        # Ends the process from a separate thread, even if the reader hangs.
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        memory_limit = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(result, json.dumps(_read(sample, folder)).encode())
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
    return error is not None and (isinstance(error, MemoryError) or _ran_out_of_memory(error.__context__))


def main(arguments: list[str] | None = None) -> int:
    """Run the cases of the command line; return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Give damaged files to a reader.")
    parser.add_argument("--reader", required=True, choices=READERS)
    parser.add_argument("--seeds", required=True, metavar="FIRST:END")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"time limit of a case; default: {SECONDS:g}"
    )
    parser.add_argument("--verbose", action="store_true", help="print the outcome of every case")
    options = parser.parse_args(arguments)
    reader = READERS[options.reader]
    samples = reader.samples()
    counts: Counter[str] = Counter()
    slowest = (0.0, 0)
    # Otherwise the garbage collector of every worker would copy the memory shared with this process.
    gc.freeze()
    for seed in range(*map(int, options.seeds.split(":"))):
        damaged = reader.damaged(samples, seed)
        started = time.monotonic()
        kind, detail = run_case(damaged, options.seconds)
        slowest = max(slowest, (time.monotonic() - started, seed))
        counts[kind] += 1
        if kind == "failed":
            print(f"FAILED: --reader {options.reader} --seeds {seed}:{seed + 1}\n{detail}", flush=True)
        elif options.verbose:
            print(f"{seed} {kind} {detail}", flush=True)
    print(
        f"{options.reader} {options.seeds}: {counts['read']} read, {counts['refused']} refused, "
        f"{counts['failed']} failed; slowest {slowest[0]:.2f} s (seed {slowest[1]})"
    )
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
