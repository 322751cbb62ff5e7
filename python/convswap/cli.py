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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from convswap.errors import NO_ONNXRUNTIME, ConvswapError
from convswap.output_file import check_writable, write_json

WIDTH_WITHOUT_TERMINAL = 120

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `convswap` with `arguments` (by default those of the process) and return the exit status."""
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
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        return _refuse(NO_ONNXRUNTIME)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader has left. What is still buffered must not fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse(f"cannot write the output: {error.strerror}")


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
    parser.add_argument("--alexnet", metavar="FILE.npy", help="AlexNet's weights, bvlc_alexnet.npy")
    parser.add_argument("--data", metavar="NAME", help="what the network's last layer is fitted to")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: the network's or symbol's name")
    parser.set_defaults(command=_export)


def _add_swap(commands: Any) -> None:
    parser = commands.add_parser("swap", help="replace the Conv nodes of a model by convswap.Conv")
    parser.add_argument("model", metavar="IN.onnx")
    parser.add_argument("-o", "--output", metavar="OUT.onnx", required=True)
    _add_kernel_options(parser)
    parser.add_argument("--only", metavar="REGEX", help="swap the nodes whose name matches")
    parser.add_argument("--force", action="store_true", help="allow OUT.onnx to be IN.onnx")
    parser.add_argument("--report", metavar="FILE.json", help="write what was swapped and what was left")
    parser.set_defaults(command=_swap)


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser("compare", help="accuracy and time of a model before and after the swap")
    parser.add_argument("model", metavar="MODEL", help="a network's name or an ONNX file")
    parser.add_argument("--data", metavar="NAME", help="fashion-mnist, synthetic or random")
    parser.add_argument("--images", type=int, metavar="N", help="the first N of the data")
    parser.add_argument("--batch", type=int, metavar="B", help="images in a run")
    parser.add_argument("--device", metavar="D", help="cuda or cpu")
    _add_kernel_options(parser)
    parser.add_argument("--tolerance", type=float, metavar="T", help="largest relative L2 error")
    parser.add_argument("--against", default="default", metavar="SIDES", help="default or all")
    parser.add_argument("--json", metavar="FILE", help="write the comparison as JSON")
    parser.set_defaults(command=_compare)


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser("bench", help="time the layers of a suite, alone")
    parser.add_argument(
        "suite", nargs="?", default="course", metavar="SUITE", help="course (default) or a large network"
    )
    parser.add_argument("--layers", metavar="REGEX", help="the layers whose name matches")
    parser.add_argument("--batch", metavar="B,...", help="batch sizes")
    parser.add_argument("--device", metavar="D", help="cuda or cpu")
    _add_kernel_options(parser)
    parser.add_argument("--against", default="default", metavar="SIDES", help="default or all")
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


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a network's name or an ONNX file")
    parser.add_argument("--batch", type=int, metavar="B", help="images in a run")
    parser.add_argument("--device", metavar="D", help="cuda or cpu")
    _add_kernel_options(parser)


def _add_kernel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--algorithm", default="auto", metavar="A", help="an algorithm's name, auto or tuned; default: auto"
    )
    parser.add_argument("--precision", default="tf32", metavar="P", help="tf32 or ieee; default: tf32")


def _export(options: argparse.Namespace) -> int:
    from convswap import export

    if options.list:
        for network in export.networks():
            size = f"{network.image_size}x{network.image_size}"
            print(f"{network.name:18} {size:9}{network.origin}")
        return 0
    checkpoint = options.mxnet_symbol or options.mxnet_params
    if [bool(options.network), bool(checkpoint), bool(options.alexnet)].count(True) != 1:
        raise ConvswapError(
            "export needs one of a network's name (see `convswap export --list`), "
            "--mxnet-symbol with --mxnet-params, and --alexnet"
        )
    check_writable(options.output, options.mxnet_symbol, options.mxnet_params, options.alexnet)
    with _progress() as progress:
        if checkpoint:
            model, name = _read_checkpoint(options)
        elif options.alexnet:
            model, name = _read_alexnet(options, progress)
        else:
            progress(f"making {options.network}")
            model = export.export_network(
                options.network,
                data=options.data,
                progress=lambda done, total: progress(f"fitting the last layer: {done} of {total} images"),
            )
            name = options.network
    output = options.output or f"{name}.onnx"
    export.save(model, output)
    print(output)
    return 0


def _read_checkpoint(options: argparse.Namespace) -> tuple[Any, str]:
    from convswap import export

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
    if options.data:
        raise ConvswapError(
            "--data was given with an MXNet checkpoint, whose weights are already fitted; leave it out"
        )
    model = export.read_mxnet(options.mxnet_symbol, options.mxnet_params, options.image_size)
    return model, Path(options.mxnet_symbol).name.removesuffix(".json").removesuffix("-symbol")


def _read_alexnet(options: argparse.Namespace, progress: Callable[[str], None]) -> tuple[Any, str]:
    from convswap import export

    if options.data or options.image_size:
        raise ConvswapError("--alexnet takes neither --data nor --image-size: leave them out")
    progress(f"reading {options.alexnet}")
    return export.read_alexnet(options.alexnet), Path(options.alexnet).stem


def _swap(options: argparse.Namespace) -> int:
    from convswap.swap import swap

    check_writable(options.report, options.model, options.output)
    result = swap(options.model, algorithm=options.algorithm, precision=options.precision, only=options.only)
    result.save(options.output, force=options.force)
    if options.report:
        write_json(options.report, result.report())
    print(f"{options.output}: {len(result.swapped)} Conv swapped, {len(result.left)} left")
    for left in result.left:
        print(f"  left {left.op} {left.node}: {left.reason}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from convswap.compare import compare
    from convswap.report import print_comparison

    check_writable(options.json, options.model)
    with _progress() as progress:
        comparison = compare(
            options.model,
            data=options.data,
            images=options.images,
            batch=options.batch,
            device=options.device,
            precision=options.precision,
            algorithm=options.algorithm,
            tolerance=options.tolerance,
            against=options.against,
            progress=progress,
        )
    _warn_of_damaged_table()
    if options.json:
        write_json(options.json, comparison.to_json())
    print_comparison(comparison, _console())
    return 0 if comparison.within_tolerance else 1


def _bench(options: argparse.Namespace) -> int:
    from convswap.bench import print_suite, run_suite

    check_writable(options.json)
    with _progress() as progress:
        rows = run_suite(
            options.suite,
            layers=options.layers,
            precision=options.precision,
            algorithm=options.algorithm,
            batches=_batches(options.batch),
            device=options.device,
            against=options.against,
            progress=progress,
        )
    _warn_of_damaged_table()
    if options.json:
        write_json(options.json, rows)
    print_suite(rows, _console(), options.device)
    return 0


def _explain(options: argparse.Namespace) -> int:
    from convswap.explain import explain, print_plan

    check_writable(options.json, options.model)
    plan = explain(
        options.model,
        batch=options.batch,
        device=options.device,
        precision=options.precision,
        algorithm=options.algorithm,
        compute_capability=_capability(options.compute_capability),
    )
    _warn_of_damaged_table()
    if options.json:
        write_json(options.json, plan.to_json())
    print_plan(plan, _console())
    return 0


def _capability(text: str | None) -> int | None:
    """Return 90 for "9.0" and for "90"."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,2})\.?(\d)", text)
    if match is None:
        raise ConvswapError(f"--compute-capability {text!r}: expected one such as 8.0 or 9.0")
    return int(match[1] + match[2])


def _tune(options: argparse.Namespace) -> int:
    from convswap.trials import RUNS
    from convswap.tune import print_tuning, tune

    check_writable(options.json, options.model)
    with _progress() as progress:
        tuning = tune(
            options.model,
            batch=options.batch,
            device=options.device,
            precision=options.precision,
            algorithm=options.algorithm,
            runs=RUNS if options.runs is None else options.runs,
            only=options.only,
            progress=progress,
        )
    _warn_of_damaged_table()
    if options.json:
        write_json(options.json, tuning.to_json())
    print_tuning(tuning, _console())
    return 0


def _warn_of_damaged_table() -> None:
    """Say on standard error what this command found wrong with the tuning table, if it read one."""
    from convswap import _native

    if warning := _native.take_tuning_warning():
        print(f"convswap: {warning}", file=sys.stderr)


def _batches(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConvswapError(
            f"--batch {text!r}: expected whole numbers with commas between, as in 1,64,512"
        ) from None


def _doctor(options: argparse.Namespace) -> int:
    from convswap.doctor import all_needed_ok, diagnose, print_doctor

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
def _progress() -> Iterator[Callable[[str], None]]:
    """Say on standard error what is going on: one changing line on a terminal, else a line for each step."""
    if not sys.stderr.isatty():
        yield lambda text: print(f"convswap: {text}", file=sys.stderr, flush=True)
        return
    console = Console(stderr=True)
    with console.status("starting") as status:
        yield lambda text: status.update(Text(text))


if __name__ == "__main__":
    sys.exit(main())
