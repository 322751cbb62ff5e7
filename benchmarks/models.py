"""Time whole models: by default, swapped, fused, and as `convswap optimize` leaves them.

    python benchmarks/models.py --json FILE                     # the course's networks on one image
    python benchmarks/models.py --json FILE resnet50 vgg16      # other networks on one image
    python tests/helpers/real_models.py FOLDER
    python benchmarks/models.py --json FILE --models FOLDER     # the files of a folder
    python benchmarks/readme_tables.py

A network runs on one image, and each run is waited for, as in a program that answers one image at a time;
`optimize` is left out. With --models each model is a file FOLDER/NAME.onnx with its inputs in
FOLDER/NAME.npz; the helper, which needs a network connection, writes both for the models that the tests take
from PyPI. A larger batch repeats the samples of the file. A model of a fixed batch, or whose inputs cannot
be split into samples, runs with the batch that it has. If `optimize` finds no faster model for these
batches, there is no optimized one.

The models take turns, inputs and outputs on the device; a time is the median of the runs in milliseconds. On
a GPU they are timed again as CUDA graphs, if ONNX Runtime can capture the model, which it cannot if nodes
run on the host.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import onnx
import onnxruntime
from convswap.cli.arguments import whole_numbers
from convswap.errors import ConvswapError
from convswap.graph.external_weights import AnyModel
from convswap.graph.swap import swap
from convswap.inputs.model_with_data import ModelWithData, open_model_with_data, source_of
from convswap.models import NETWORKS, find
from convswap.optimizing.optimize import optimize
from convswap.output.files import check_writable, write_json
from convswap.reference.metrics import TOLERANCES, relative_l2_error, worst_output
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.onnxruntime_errors import plain_errors
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, Side, make_session, on_device, run
from convswap.timing.sampler import Startable, measure, sample_of, single_runs

Values = Mapping[str, onnxruntime.OrtValue]

BATCHES = "1,8"


class CapturedRun:
    """A session that runs as a CUDA graph, from the memory of `feeds` to that of `outputs`."""

    def __init__(self, model: AnyModel, side: Side, feeds: Values, outputs: Values, device: Device) -> None:
        self._session = make_session(model, side.with_options({"enable_cuda_graph": "1"}), device)
        self._options = onnxruntime.RunOptions()
        # Without this entry ONNX Runtime's Python takes 40 us to find that it is not there.
        self._options.add_run_config_entry("gpu_graph_id", "0")
        self._binding = self._session.io_binding()
        for name, value in feeds.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def start(self, runs: int) -> None:
        """Run `runs` times, waiting for each result."""
        with plain_errors("ONNX Runtime cannot run the model as a CUDA graph"):
            for _ in range(runs):
                self._session.run_with_iobinding(self._binding, self._options)

    def wait(self) -> None:
        """Wait for the last result."""
        self._binding.synchronize_outputs()


class WaitedRun(BoundRun):
    """A session whose every run is waited for, also within a burst."""

    def start(self, runs: int) -> None:
        """Run `runs` times, waiting for each result."""
        for _ in range(runs):
            self.once()


def network_row(name: str, data: str | None, device: Device) -> dict:
    """Return the row of a network on one image."""
    tested = open_model_with_data(name, data)
    models = {
        "default": tested.plain,
        "swapped": swap(tested.model).model,
        "fused": swap(tested.model, fuse=True).model,
    }
    row = one_batch(models, source_of(tested, 1, 1, device), device, WaitedRun)
    if max(row["relative_l2"].values()) > TOLERANCES["tf32"]:
        raise ConvswapError(f"{name}: the outputs differ by {row['relative_l2']}")
    return {"model": name} | row


def file_rows(file: Path, batches: Sequence[int], device: Device) -> list[dict]:
    """Return a row for each batch of the model in `file` that it can run with."""
    inputs = file.with_suffix(".npz")
    tested = open_model_with_data(str(file), None, None, inputs)
    possible = possible_batches(tested, batches, device)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / file.name
        found = optimize(str(file), output, batches=possible, device=device.name, inputs=inputs)
        models = {
            "default": tested.plain,
            "swapped": swap(tested.plain).model,
            "fused": swap(tested.plain, fuse=True).model,
        }
        if found.written is not None:
            models["optimized"] = onnx.load(output)
    taken = sum(node.taken != "default" for node in found.nodes)
    return [
        {"model": file.stem, "convs": len(found.nodes), "taken": taken if found.written else 0}
        | one_batch(models, source_of(tested, None, batch, device), device, BoundRun)
        for batch in possible or [None]
    ]


def possible_batches(tested: ModelWithData, batches: Sequence[int], device: Device) -> list[int] | None:
    """Return those of `batches` that the model and its inputs allow; None where only their own is."""
    possible = []
    for batch in batches:
        try:
            source_of(tested, None, batch, device)
        except ConvswapError:
            continue
        possible.append(batch)
    if not possible:
        source_of(tested, None, None, device)  # raises where it is no matter of the batch
    return possible or None


def one_batch(models: Mapping[str, AnyModel], source, device: Device, kind: type[BoundRun]) -> dict:
    """Return the batch, the times of the models, and the errors of their outputs against the default's."""
    feeds = source.first(source.batch)
    sessions = {
        name: make_session(model, DEFAULT if name == "default" else CONVSWAP, device)
        for name, model in models.items()
    }
    outputs = {name: run(session, feeds) for name, session in sessions.items()}
    errors = {
        name: float(worst_output(relative_l2_error, own, outputs["default"])) for name, own in outputs.items()
    }
    on_card = on_device(feeds, device)
    runs = {name: kind(session, on_card, device) for name, session in sessions.items()}
    milliseconds = medians(runs, device)
    captured = {} if device.name == "cpu" else captured_runs(models, on_card, runs["default"], device)
    return {
        "batch": source.batch,
        "ms": milliseconds,
        "graph_ms": medians(captured, device) if captured else {},
        "relative_l2": errors,
    }


def medians(runs: Mapping[str, Startable], device: Device) -> dict[str, float]:
    """Return the median milliseconds of each, in turn."""
    samples = {name: sample_of(run) for name, run in runs.items()}
    return {name: each.median for name, each in measure(samples, single_runs(device)).items()}


def captured_runs(
    models: Mapping[str, AnyModel],
    feeds: Values,
    like: BoundRun,
    device: Device,
    options: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, CapturedRun]:
    """Return each model as a CUDA graph, its outputs shaped as `like` left them; none where one fails.

    `options` are those of the CUDA provider.
    """
    captured = {}
    outputs = dict(zip(like.outputs, like.values(), strict=True))
    try:
        for name, model in models.items():
            side = (DEFAULT if name == "default" else CONVSWAP).with_options(options)
            captured[name] = CapturedRun(model, side, feeds, outputs, device)
            captured[name].start(1)
    except ConvswapError as error:
        print(f"no CUDA graph: {error}", file=sys.stderr, flush=True)
        return {}
    return captured


def main() -> int:
    """Time the models and write the file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the results go")
    parser.add_argument(
        "names", nargs="*", default=[], metavar="NAME", help="default: the course's networks, or all files"
    )
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="has NAME.onnx and NAME.npz of each")
    parser.add_argument("--data", metavar="NAME", help="for networks: fashion-mnist or synthetic")
    parser.add_argument("--device", metavar="D", help="cuda or cpu; default: the GPU where there is one")
    parser.add_argument("--batches", default=BATCHES, metavar="B,...", help=f"of files; default: {BATCHES}")
    options = parser.parse_intermixed_args()  # names may follow options
    try:
        batches = whole_numbers("--batches", options.batches, BATCHES)
        if options.models is None:
            found = [find(name).name for name in options.names] or list(NETWORKS)
        else:
            found = files_of(options.models, options.names)
        device = choose_device(options.device)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        check_writable(options.json)
        rows = []
        for number, each in enumerate(found, start=1):
            is_file = isinstance(each, Path)
            name = each.stem if is_file else each
            print(f"{name}, {number} of {len(found)}", file=sys.stderr, flush=True)
            rows += file_rows(each, batches, device) if is_file else [network_row(each, options.data, device)]
        write_json(options.json, {"environment": environment(device), "device": device.name, "rows": rows})
    except (ConvswapError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def files_of(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the models of `folder` that are called `names`, all where there are none.

    Raises:
        ConvswapError: there is no model, or not one of these.
    """
    files = [folder / f"{name}.onnx" for name in names] or sorted(folder.glob("*.onnx"))
    missing = [str(file) for file in files if not file.is_file()]
    if missing or not files:
        wanted = ", ".join(missing) or f"{folder}/NAME.onnx"
        raise ConvswapError(
            f"there is no {wanted}; `python tests/helpers/real_models.py {folder}` writes some"
        )
    return files


if __name__ == "__main__":
    sys.exit(main())
