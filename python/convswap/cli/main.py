"""The command line: reads the arguments, calls the package, prints, and sets the exit status.

Exit status: 0 all went well; 1 the answers differ by more than the tolerance, or something needed is missing;
2 bad usage or bad input, with one line on standard error; 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from convswap.errors import NO_ONNXRUNTIME, ConvswapError, short_of_memory
from convswap.output.files import check_writable, write_bytes, write_json, write_text
from convswap.progress import Progress
from convswap.runtime.onnxruntime_package import NAME, why_broken

WIDTH_WITHOUT_TERMINAL = 120
_FUSE_HELP = "let Convs take in the bias, batch normalisation, residual, activation, pooling behind them"

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `convswap` with `arguments` (by default those of the process) and return the exit status.

    It changes the process for the command: its standard streams, and ONNX Runtime's telemetry is off.
    """
    # ONNX Runtime reads it when it is imported. A measurement must not share its time with uploads.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # Closed, as by `>&-`, they are None.
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What the terminal's encoding lacks must not stop a command.
            stream.reconfigure(errors="replace")
    try:
        options = _parser().parse_args(arguments)
        command: Command = options.command
        status = command(options)
        sys.stdout.flush()
        return status
    except ConvswapError as error:
        return _refuse(str(error))
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == NAME:
            return _refuse(NO_ONNXRUNTIME)
        if not (reason := why_broken()):
            raise
        return _refuse(f"the installed {NAME} is broken: {reason}; `convswap doctor` says what to type")
    except MemoryError as error:
        return _refuse(str(short_of_memory(error)))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has left. What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            return _refuse(f"cannot write the output: {error.strerror}")
        return _refuse(f"cannot read or write '{error.filename}': {error.strerror}")


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _refuse(message: str) -> int:
    print(f"convswap: {message}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        raise ConvswapError(f"{message}; see `{self.prog} --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="convswap", description="Fast convolutions for ONNX models in ONNX Runtime.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_export(commands)
    _add_swap(commands)
    _add_compare(commands)
    _add_bench(commands)
    _add_explain(commands)
    _add_tune(commands)
    _add_warm(commands)
    _add_ladder(commands)
    _add_profile(commands)
    _add_study(commands)
    _add_train(commands)
    _add_data(commands)
    doctor = commands.add_parser("doctor", help="what is installed, what is missing, what to type")
    doctor.set_defaults(command=_doctor)
    return parser


def _add_export(commands: Any) -> None:
    parser = commands.add_parser("export", help="write a network or a course checkpoint as an ONNX model")
    parser.add_argument("network", nargs="?", metavar="NETWORK", help="one of `convswap export --list`")
    parser.add_argument("--list", action="store_true", help="list the networks")
    parser.add_argument("--mxnet-symbol", metavar="FILE.json", help="an MXNet symbol")
    parser.add_argument("--mxnet-params", metavar="FILE.params", help="the symbol's parameters")
    parser.add_argument("--image-size", type=int, metavar="N", help="height and width of the symbol's input")
    parser.add_argument(
        "--mini-dnn",
        metavar="FILE.bin",
        help="a weights file of the course since 2020; the biases of its convolutions are left out, as there",
    )
    parser.add_argument(
        "--torch", metavar="MODULE:NAME", help="a PyTorch module, or what gives one; or a torchvision name"
    )
    parser.add_argument(
        "--input-shape",
        metavar="C,H,W",
        help="the shape of one sample for --torch; default: the channels of its first Conv2d, 224, 224",
    )
    parser.add_argument("--alexnet", metavar="FILE.npy", help="AlexNet's weights, bvlc_alexnet.npy")
    parser.add_argument(
        "--data", metavar="NAME", help="what the network is to know: fashion-mnist (default) or synthetic"
    )
    parser.add_argument("--weights", metavar="FILE.npz", help="the network's weights, as `train` wrote them")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: named after what was given")
    parser.set_defaults(command=_export)


def _add_swap(commands: Any) -> None:
    parser = commands.add_parser("swap", help="replace the Conv nodes of a model by convswap.Conv")
    parser.add_argument("model", metavar="IN.onnx")
    parser.add_argument("-o", "--output", metavar="OUT.onnx", required=True)
    _add_kernel_options(parser)
    parser.add_argument("--only", metavar="REGEX", help="swap the nodes whose name matches")
    parser.add_argument("--fuse", action="store_true", help=_FUSE_HELP)
    parser.add_argument("--force", action="store_true", help="allow OUT.onnx to be IN.onnx")
    parser.add_argument("--report", metavar="FILE.json", help="write what was swapped and what was left")
    parser.set_defaults(command=_swap)


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser("compare", help="accuracy and time of a model before and after the swap")
    parser.add_argument("model", metavar="MODEL", help="a network's name or an ONNX file")
    parser.add_argument("--data", metavar="NAME", help="fashion-mnist, synthetic or random")
    parser.add_argument("--images", type=int, metavar="N", help="the first N of the data")
    parser.add_argument("--batch", type=int, metavar="B", help="images in a run")
    _add_input_shape(parser)
    parser.add_argument("--device", metavar="D", help="cuda or cpu")
    _add_kernel_options(parser)
    parser.add_argument("--only", metavar="REGEX", help="swap the nodes whose name matches")
    parser.add_argument("--fuse", action="store_true", help=_FUSE_HELP)
    parser.add_argument("--tolerance", type=float, metavar="T", help="largest relative L2 error")
    parser.add_argument("--against", default="default", metavar="SIDES", help="default or all")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--course", action="store_true", help="also print the two lines of ECE 408, per side")
    parts.add_argument(
        "--no-layers", action="store_true", help="time the whole model only: soon done for deep ones"
    )
    parser.add_argument("--json", metavar="FILE", help="write the comparison as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with the verdict, a plot and the tables")
    parser.set_defaults(command=_compare)


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser("bench", help="time the layers of a suite, alone")
    parser.add_argument(
        "suite",
        nargs="?",
        metavar="SUITE",
        help="course (default), many-channels, one-d, three-d or a large network",
    )
    parser.add_argument("--layers", metavar="REGEX", help="the layers whose name matches")
    parser.add_argument("--batch", metavar="B,...", help="batch sizes")
    parser.add_argument("--device", metavar="D", help="cuda or cpu")
    _add_kernel_options(parser, precisions="tf32 or ieee for float32 tensors, float16 or bfloat16")
    parser.add_argument(
        "--against",
        default="default",
        metavar="SIDES",
        help="default, all for its other options and PyTorch too, or algorithms for how far the choice is "
        "from the best",
    )
    parser.add_argument(
        "--alternate",
        action="store_true",
        help="runs whose batch changes, through all of --batch in turn, against runs that keep theirs",
    )
    parser.add_argument(
        "--first-run",
        metavar="MODEL",
        help="instead of a suite: a model's session creation and first run, in fresh processes",
    )
    _add_input_shape(parser)
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    parser.set_defaults(command=_bench)


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser("explain", help="the plan of every Conv of a model, and why")
    _add_plan_options(parser)
    parser.add_argument(
        "--compute-capability", metavar="C", help="plan for a typical card, such as 9.0, instead of a device"
    )
    parser.add_argument("--json", metavar="FILE", help="write the plans as JSON")
    parser.set_defaults(command=_explain)


def _add_tune(commands: Any) -> None:
    parser = commands.add_parser("tune", help="measure every algorithm and remember the best")
    _add_plan_options(parser)
    parser.add_argument("--runs", type=int, metavar="N", help="timed runs of each algorithm; default: 20")
    parser.add_argument("--only", metavar="REGEX", help="measure the nodes whose name matches")
    parser.add_argument("--json", metavar="FILE", help="write the times as JSON")
    parser.set_defaults(command=_tune)


def _add_warm(commands: Any) -> None:
    parser = commands.add_parser("warm", help="compile what a model needs, here or for other cards")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a network's name or an ONNX file")
    parser.add_argument("--batch", metavar="B,...", help="images in a run; default: 1,8,64,512")
    _add_input_shape(parser)
    _add_kernel_options(parser)
    parser.add_argument("--fuse", action="store_true", help=_FUSE_HELP)
    parser.add_argument(
        "--compute-capability",
        metavar="C,...",
        help="of the cards, such as 8.0,9.0, which need not be here; default: this machine's",
    )
    parser.add_argument("-o", "--output", metavar="FILE.pack", help="write the kernels, for convswap.pack")
    parser.add_argument("--clear", action="store_true", help="instead: delete all kernels that are kept")
    parser.set_defaults(command=_warm)


def _add_ladder(commands: Any) -> None:
    parser = commands.add_parser("ladder", help="every step from plain loops to tensor cores, timed")
    parser.add_argument(
        "network", nargs="?", metavar="NETWORK", help="a course network; default: ece408-2017-high"
    )
    parser.add_argument("--data", metavar="NAME", help="fashion-mnist or synthetic")
    parser.add_argument("--images", type=int, metavar="N", help="the first N of the data; default: 10,000")
    parser.add_argument("--device", metavar="D", help="cuda or cpu")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with plot, table and every rung's text")
    parser.set_defaults(command=_ladder)


def _add_profile(commands: Any) -> None:
    parser = commands.add_parser(
        "profile", help="GPU kernels, copies and CUDA calls of a model, most expensive first, by CUPTI"
    )
    parser.add_argument("model", metavar="MODEL", help="a network's name or an ONNX file")
    parser.add_argument("--data", metavar="NAME", help="fashion-mnist, synthetic or random")
    parser.add_argument("--images", type=int, metavar="N", help="the first N of the data")
    parser.add_argument("--batch", type=int, metavar="B", help="images in a run")
    _add_input_shape(parser)
    _add_kernel_options(parser)
    parser.add_argument("--only", metavar="REGEX", help="swap the nodes whose name matches")
    parser.add_argument("--fuse", action="store_true", help="let Convs take in what follows them")
    parser.add_argument(
        "--against", metavar="SIDES", help="default, or all for its other options for Conv too"
    )
    parser.add_argument("--runs", type=int, metavar="N", help="recorded runs of each side; default: 20")
    parser.add_argument(
        "--on-card",
        action="store_true",
        help="leave inputs and outputs on the card, as compare does; by default each run copies them",
    )
    parser.add_argument("--json", metavar="FILE", help="write the profile as JSON")
    parser.add_argument("--trace", metavar="FILE", help="write a trace that Perfetto opens (ui.perfetto.dev)")
    parser.set_defaults(command=_profile)


def _add_study(commands: Any) -> None:
    parser = commands.add_parser("study", help="the parts of AlexNet's time over batch sizes, by CUPTI")
    parser.add_argument("network", metavar="NETWORK", help="alexnet")
    parser.add_argument("--batches", metavar="B,...", help="batch sizes; default: 1,2,4 and so on to 1024")
    _add_kernel_options(parser)
    parser.add_argument("--fuse", action="store_true", help="let Convs take in what follows them")
    parser.add_argument("--runs", type=int, metavar="N", help="recorded runs of each side; default: 20")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    parser.add_argument(
        "-o", "--output", metavar="FILE.png", help="the two plots; default: NETWORK-study.png"
    )
    parser.set_defaults(command=_study)


def _add_train(commands: Any) -> None:
    parser = commands.add_parser("train", help="train a course network with PyTorch and store its weights")
    parser.add_argument("network", metavar="NETWORK", help="one of `convswap export --list`")
    parser.add_argument("-o", "--output", metavar="FILE.npz", help="default: NETWORK.trained.npz")
    parser.add_argument(
        "--data", default="fashion-mnist", metavar="NAME", help="fashion-mnist (default) or synthetic"
    )
    parser.add_argument("--images", type=int, metavar="N", help="the first N training images; default: all")
    parser.add_argument("--epochs", type=int, metavar="N", help="default: what suits the network")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument("--device", metavar="D", help="cuda or cpu; default: cuda where PyTorch sees a card")
    parser.set_defaults(command=_train)


def _add_data(commands: Any) -> None:
    parser = commands.add_parser("data", help="look at the data sets")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="draw test images with predicted and true class")
    show.add_argument("--data", metavar="NAME", help="fashion-mnist or synthetic")
    show.add_argument("--images", type=int, default=50, metavar="N", help="the first N; default: 50")
    show.add_argument(
        "--model",
        default="ece408-2017-high",
        metavar="MODEL",
        help="what predicts, a network's name or an ONNX file; default: ece408-2017-high",
    )
    show.add_argument("-o", "--output", metavar="FILE.png", help="default: the data set's name")
    show.set_defaults(command=_data_show)


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a network's name or an ONNX file")
    parser.add_argument("--batch", type=int, metavar="B", help="images in a run")
    _add_input_shape(parser)
    parser.add_argument("--device", metavar="D", help="cuda or cpu")
    _add_kernel_options(parser)
    parser.add_argument("--fuse", action="store_true", help=_FUSE_HELP)


def _add_input_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input-shape",
        action="append",
        metavar="[INPUT=]C,H,W",
        help="the shape of one sample where the model leaves it open; again for further inputs",
    )


def _add_kernel_options(parser: argparse.ArgumentParser, precisions: str = "tf32 or ieee") -> None:
    parser.add_argument(
        "--algorithm", default="auto", metavar="A", help="an algorithm's name, auto or tuned; default: auto"
    )
    parser.add_argument("--precision", default="tf32", metavar="P", help=f"{precisions}; default: tf32")


def _export(options: argparse.Namespace) -> int:
    from convswap import export

    if options.list:
        others = {name: value for name, value in vars(options).items() if name not in ("list", "command")}
        _refuse_beside("--list", {_shown(name): value for name, value in others.items()})
        for network in export.networks():
            size = f"{network.image_size}x{network.image_size}"
            print(f"{network.name:18} {size:9}{network.origin}")
        return 0
    sources = {
        "a network's name (see `convswap export --list`)": options.network,
        "--mxnet-symbol with --mxnet-params": options.mxnet_symbol or options.mxnet_params,
        "--mini-dnn": options.mini_dnn,
        "--alexnet": options.alexnet,
        "--torch": options.torch,
    }
    given = [name for name, value in sources.items() if value]
    if len(given) != 1:
        raise ConvswapError(
            f"export needs one of {', '.join(sources)}; given: {' and '.join(given) or 'none of them'}"
        )
    check_writable(
        options.output,
        options.mxnet_symbol,
        options.mxnet_params,
        options.mini_dnn,
        options.alexnet,
        options.weights,
    )
    with _progress() as progress:
        if options.network:
            model, name = _export_network(options, progress), options.network
        elif options.torch:
            model, name = _export_torch(options, progress), options.torch.rpartition(":")[2]
        else:
            model, name = _read_checkpoint(options, progress)
    output = options.output or f"{name}.onnx"
    export.save(model, output)
    print(output)
    return 0


def _export_network(options: argparse.Namespace, progress: Progress) -> Any:
    from convswap import export

    _refuse_options(options, "a network's name", "image_size", "input_shape")
    if options.weights is not None:
        _refuse_options(options, "--weights, which have been trained", "data")
    progress(f"making {options.network}")
    return export.export_network(
        options.network,
        data=options.data,
        weights=options.weights,
        progress=lambda done, total: progress(f"fitting the last layer: {done} of {total} images"),
    )


def _export_torch(options: argparse.Namespace, progress: Progress) -> Any:
    from convswap import export

    _refuse_options(options, "--torch", "data", "weights", "image_size")
    shape = _whole_numbers("--input-shape", options.input_shape, "3,224,224")
    if shape is not None and min(shape) < 1:
        raise ConvswapError(f"--input-shape {options.input_shape!r}: expected numbers from 1 on")
    progress(f"exporting {options.torch}")
    return export.export_torch(options.torch, shape)


def _read_checkpoint(options: argparse.Namespace, progress: Progress) -> tuple[Any, str]:
    """Return the model of a checkpoint, and a name for its file."""
    from convswap import export

    if options.alexnet:
        _refuse_options(options, "--alexnet", "data", "weights", "image_size", "input_shape")
        progress(f"reading {options.alexnet}")
        return export.read_alexnet(options.alexnet), Path(options.alexnet).stem
    if options.mini_dnn:
        source = "--mini-dnn, whose network and weights are fixed"
        _refuse_options(options, source, "data", "weights", "image_size", "input_shape")
        return export.read_mini_dnn(options.mini_dnn), Path(options.mini_dnn).name.removesuffix(".bin")
    wanted = {
        "--mxnet-symbol": options.mxnet_symbol,
        "--mxnet-params": options.mxnet_params,
        "--image-size": options.image_size,
    }
    missing = [name for name, value in wanted.items() if value is None]
    if missing:
        raise ConvswapError(
            f"{' and '.join(missing)} missing: an MXNet checkpoint needs all of {', '.join(wanted)}"
        )
    source = "an MXNet checkpoint, whose weights are already trained"
    _refuse_options(options, source, "data", "weights", "input_shape")
    model = export.read_mxnet(options.mxnet_symbol, options.mxnet_params, options.image_size)
    return model, Path(options.mxnet_symbol).name.removesuffix(".json").removesuffix("-symbol")


def _refuse_options(options: argparse.Namespace, source: str, *names: str) -> None:
    """Raise ConvswapError where an option was given that means nothing for `source`."""
    for name in names:
        if getattr(options, name) is not None:
            raise ConvswapError(f"{_shown(name)} was given with {source}; leave it out")


def _shown(name: str) -> str:
    """Return what the user types for what the parser calls `name`."""
    return "NETWORK" if name == "network" else f"--{name.replace('_', '-')}"


def _check_result(path: str | None, model: str, *others: str | None) -> None:
    """Refuse a result file that cannot be written, or would be one of the model's own or of the others."""
    from convswap.graph.model_file import files_of

    if path is not None:
        check_writable(path, *files_of(model), *others)


def _check_drawing(page: str | None) -> None:
    """Refuse a page with a plot, before the long work, where nothing can draw it."""
    if page is not None:
        from convswap.output.drawing import require_matplotlib

        require_matplotlib()


def _swap(options: argparse.Namespace) -> int:
    from convswap.graph.fusion.fuse import fusion_lines
    from convswap.graph.swap import swap

    _check_result(options.report, options.model, options.output, f"{options.output}.data")
    result = swap(
        options.model,
        algorithm=options.algorithm,
        precision=options.precision,
        only=options.only,
        fuse=options.fuse,
    )
    result.save(options.output, force=options.force)
    if options.report:
        write_json(options.report, result.report())
    fused = f", {len(result.fused)} fused with what follows" if options.fuse else ""
    print(f"{options.output}: {len(result.swapped)} Conv swapped, {len(result.left)} left{fused}")
    for left in result.left:
        print(f"  left {left.op} {left.node}: {left.reason}")
    for line in fusion_lines(result.fused, result.not_fused):
        print(f"  {line}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from convswap.comparison.compare import compare
    from convswap.comparison.report import print_comparison, print_course_lines

    _check_result(options.json, options.model, options.html)
    _check_result(options.html, options.model, options.json)
    _check_drawing(options.html)
    with _progress() as progress:
        comparison = compare(
            options.model,
            data=options.data,
            images=options.images,
            batch=options.batch,
            device=options.device,
            precision=options.precision,
            algorithm=options.algorithm,
            only=options.only,
            fuse=options.fuse,
            tolerance=options.tolerance,
            against=options.against,
            labelled=options.course,
            time_layers=not options.no_layers,
            input_shape=_input_shape(options),
            progress=progress,
        )
    _write_found(options, comparison.to_json())
    if options.html:
        from convswap.comparison.page import compare_html

        write_text(options.html, compare_html(comparison))
    console = _console()
    print_comparison(comparison, console)
    if options.course:
        print_course_lines(comparison, console)
    return 0 if comparison.within_tolerance else 1


def _bench(options: argparse.Namespace) -> int:
    if options.first_run is not None:
        return _bench_first_run(options)
    _refuse_beside("a suite, whose shapes are fixed", {"--input-shape": options.input_shape})
    if options.alternate:
        return _bench_alternating(options)
    from convswap.bench.suite import run_suite
    from convswap.bench.tables import print_suite

    check_writable(options.json)
    with _progress() as progress:
        rows = run_suite(
            _suite(options),
            layers=options.layers,
            precision=options.precision,
            algorithm=options.algorithm,
            batches=_whole_numbers("--batch", options.batch, "1,64,512"),
            device=options.device,
            against=options.against,
            progress=progress,
        )
    _write_found(options, rows)
    print_suite(rows, _console(), options.device, options.against)
    return 0


def _suite(options: argparse.Namespace) -> str:
    return "course" if options.suite is None else str(options.suite)


def _bench_alternating(options: argparse.Namespace) -> int:
    from convswap.bench.alternating import print_alternating, run_alternating

    _refuse_beside("--alternate", {"--against": options.against}, {"--against": "default"})
    check_writable(options.json)
    with _progress() as progress:
        rows = run_alternating(
            _suite(options),
            layers=options.layers,
            precision=options.precision,
            algorithm=options.algorithm,
            batches=_whole_numbers("--batch", options.batch, "1,64,512"),
            device=options.device,
            progress=progress,
        )
    _write_found(options, rows)
    print_alternating(rows, _console(), options.device)
    return 0


def _bench_first_run(options: argparse.Namespace) -> int:
    from convswap.bench.first_run import first_run, print_first_run

    given = {"--against": options.against, "--layers": options.layers, "--alternate": options.alternate}
    usual = {"--against": "default", "--alternate": False}
    _refuse_beside("--first-run", {**given, "SUITE": options.suite}, usual)
    batches = _whole_numbers("--batch", options.batch, "1,64,512")
    if batches is not None and len(batches) != 1:
        raise ConvswapError(f"--first-run takes one batch size, but --batch {options.batch} was given")
    _check_result(options.json, options.first_run)
    with _progress() as progress:
        found = first_run(
            options.first_run,
            batch=None if batches is None else batches[0],
            device=options.device,
            precision=options.precision,
            algorithm=options.algorithm,
            input_shape=_input_shape(options),
            progress=progress,
        )
    _write_found(options, found)
    print_first_run(found, _console(), options.device)
    return 0


def _refuse_beside(option: str, given: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> None:
    """Refuse what `option` would ignore: what is `given` and not as `usual`, which is None by default."""
    for name, value in given.items():
        if value != (usual or {}).get(name):
            raise ConvswapError(f"{name} has no meaning beside {option}; leave one of them out")


def _explain(options: argparse.Namespace) -> int:
    from convswap.planning.explain import explain, print_plan

    _check_result(options.json, options.model)
    plan = explain(
        options.model,
        batch=options.batch,
        device=options.device,
        precision=options.precision,
        algorithm=options.algorithm,
        fuse=options.fuse,
        input_shape=_input_shape(options),
        compute_capability=_capability(options.compute_capability),
    )
    _write_found(options, plan.to_json())
    print_plan(plan, _console())
    return 0


def _input_shape(options: argparse.Namespace) -> list[int] | dict[str, list[int]] | None:
    """Return [3, 224, 224] for "3,224,224" alone, {"x": [3, 224, 224]} for "x=3,224,224" and others."""
    shapes: dict[str, list[int]] = {}
    for text in options.input_shape or ():
        match = re.fullmatch(r"(?:(.+)=)?(\d+(?:,\d+)*)", text, re.DOTALL)
        if match is None:
            raise ConvswapError(
                f"--input-shape {text!r}: expected whole numbers with commas between, as in 3,224,224, or "
                "x=3,224,224 for input x"
            )
        name = match[1] or ""
        if name in shapes or (shapes and "" in (name, *shapes)):
            raise ConvswapError(
                f"--input-shape {text!r} is one too many; give each input's once, as in x=3,224,224 where "
                "there are several"
            )
        shapes[name] = [int(number) for number in match[2].split(",")]
    return shapes.get("", shapes or None)


def _capability(text: str | None) -> int | None:
    """Return 90 for "9.0" and for "90"."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,2})\.?(\d)", text)
    if match is None:
        raise ConvswapError(f"--compute-capability {text!r}: expected one such as 8.0 or 9.0")
    return int(match[1] + match[2])


def _tune(options: argparse.Namespace) -> int:
    from convswap.planning.tune import print_tuning, tune
    from convswap.timing.trials import RUNS

    _check_result(options.json, options.model)
    with _progress() as progress:
        tuning = tune(
            options.model,
            batch=options.batch,
            device=options.device,
            precision=options.precision,
            algorithm=options.algorithm,
            fuse=options.fuse,
            runs=RUNS if options.runs is None else options.runs,
            only=options.only,
            input_shape=_input_shape(options),
            progress=progress,
        )
    _write_found(options, tuning.to_json())
    print_tuning(tuning, _console())
    return 0


def _warm(options: argparse.Namespace) -> int:
    from convswap.planning.warm import BATCHES, clear, print_warmed, warm

    if options.clear:
        given = {
            "MODEL": options.model,
            "--batch": options.batch,
            "--compute-capability": options.compute_capability,
            "-o": options.output,
        }
        _refuse_beside("--clear", given)
        print(f"{clear()} kernels deleted")
        return 0
    if options.model is None:
        raise ConvswapError("warm: expected a MODEL, or --clear; see `convswap warm --help`")
    check_writable(options.output, options.model)
    capabilities = options.compute_capability and [
        _capability(text) for text in options.compute_capability.split(",")
    ]
    with _progress() as progress:
        warmed = warm(
            options.model,
            batches=_whole_numbers("--batch", options.batch, "1,64,512") or BATCHES,
            compute_capabilities=capabilities,
            precision=options.precision,
            algorithm=options.algorithm,
            fuse=options.fuse,
            input_shape=_input_shape(options),
            pack=options.output,
            progress=progress,
        )
    print_warmed(warmed, _console())
    return 0


def _ladder(options: argparse.Namespace) -> int:
    from convswap.ladder.climb import DEFAULT_NETWORK, climb
    from convswap.ladder.page import ladder_html
    from convswap.ladder.report import print_ladder

    check_writable(options.json, options.html)
    check_writable(options.html, options.json)
    _check_drawing(options.html)
    with _progress() as progress:
        found = climb(
            DEFAULT_NETWORK if options.network is None else options.network,
            data=options.data,
            images=options.images,
            device=options.device,
            progress=progress,
        )
    _write_found(options, found.to_json())
    if options.html:
        write_text(options.html, ladder_html(found))
    print_ladder(found, _console())
    return 0 if found.is_right else 1


def _profile(options: argparse.Namespace) -> int:
    from convswap.profiling.profile import profile
    from convswap.profiling.report import print_profile
    from convswap.profiling.trace import trace_text

    _check_result(options.json, options.model)
    _check_result(options.trace, options.model, options.json)
    with _progress() as progress:
        found = profile(
            options.model,
            data=options.data,
            images=options.images,
            batch=options.batch,
            precision=options.precision,
            algorithm=options.algorithm,
            only=options.only,
            fuse=options.fuse,
            against=options.against,
            runs=options.runs,
            resident=options.on_card,
            input_shape=_input_shape(options),
            progress=progress,
        )
    _write_found(options, found.to_json())
    if options.trace:
        write_text(options.trace, trace_text(found))
    print_profile(found, _console())
    return 0


def _study(options: argparse.Namespace) -> int:
    from convswap.inputs.contact_sheet import png
    from convswap.profiling.study import study
    from convswap.profiling.study_report import draw_study, print_study

    output = options.output or f"{options.network}-study.png"
    if Path(output).suffix.lower() != ".png":
        raise ConvswapError(f"cannot write '{output}': the plots are a PNG; name a .png file")
    check_writable(options.json)
    check_writable(output, options.json)
    with _progress() as progress:
        found = study(
            options.network,
            batches=_whole_numbers("--batches", options.batches, "1,64,1024"),
            precision=options.precision,
            algorithm=options.algorithm,
            fuse=options.fuse,
            runs=options.runs,
            progress=progress,
        )
    _write_found(options, found.to_json())
    print_study(found, _console())
    write_bytes(output, png(draw_study(found)))
    print(output)
    return 0


def _train(options: argparse.Namespace) -> int:
    from convswap.export import train_network

    output = options.output or f"{options.network}.trained.npz"
    check_writable(output)
    with _progress() as progress:
        trained = train_network(
            options.network,
            data=options.data,
            images=options.images,
            epochs=options.epochs,
            seed=options.seed,
            device=options.device,
            progress=progress,
        )
    write_bytes(output, trained.content)
    print(
        f"{output}: {len(trained.content)} bytes, accuracy {trained.test_accuracy:.4f} of the test images "
        f"after loading, {trained.held_out_accuracy:.4f} of the training images held out"
    )
    return 0


def _data_show(options: argparse.Namespace) -> int:
    from convswap.inputs.contact_sheet import check_count, draw, png
    from convswap.inputs.predictions import predict

    if options.output and Path(options.output).suffix.lower() != ".png":
        raise ConvswapError(f"cannot write '{options.output}': a contact sheet is a PNG; name a .png file")
    check_writable(options.output, options.model)
    check_count(options.images)
    with _progress() as progress:
        progress("reading the model and the data")
        predictions = predict(options.model, data=options.data, images=options.images)
        progress("drawing")
        sheet = png(draw(predictions))
    output = options.output or f"{predictions.dataset}.png"
    write_bytes(output, sheet)
    print(f"{output}: {predictions.right} of {len(predictions.labels)} named right by {predictions.model}")
    return 0


def _write_found(options: argparse.Namespace, found: Any) -> None:
    """Write what a command found where --json says, and warn of a damaged tuning table if it read one."""
    from convswap import _native

    if warning := _native.take_tuning_warning():
        print(f"convswap: {warning}", file=sys.stderr)
    if options.json:
        write_json(options.json, found)


def _whole_numbers(option: str, text: str | None, example: str) -> list[int] | None:
    """Return [1, 64] for "1,64", None for None."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConvswapError(
            f"{option} {text!r}: expected whole numbers with commas between, as in {example}"
        ) from None


def _doctor(options: argparse.Namespace) -> int:
    from convswap.doctor.diagnosis import all_needed_ok, diagnose, print_doctor

    findings = diagnose()
    print_doctor(findings, _console())
    return 0 if all_needed_ok(findings) else 1


class _Output(Console):
    """A console that leaves a closed pipe to `main`; rich's own would exit with status 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _console() -> Console:
    """Standard output: as wide as the terminal; without one 120 columns and no colour."""
    if sys.stdout.isatty():
        return _Output()
    return _Output(width=WIDTH_WITHOUT_TERMINAL, no_color=True, force_terminal=False)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Say on standard error what is going on: one changing line on a terminal, else a line for each step.

    The line is drawn when it changes, not by a thread that would take its time from what is measured.
    """
    if not sys.stderr.isatty():
        yield lambda text: print(f"convswap: {text}", file=sys.stderr, flush=True)
        return
    with Live(Text("starting"), console=Console(stderr=True), auto_refresh=False, transient=True) as line:
        yield lambda text: line.update(Text(text), refresh=True)


if __name__ == "__main__":
    sys.exit(main())
