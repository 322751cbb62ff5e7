"""`convswap lab`: run your own kernels."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.text import Text

from convswap.cli.arguments import arguments_of
from convswap.cli.completion import names_or_files, network_names
from convswap.cli.results import check_results, console, give_results, progress_line, show_and_write
from convswap.errors import ConvswapError
from convswap.progress import note

if TYPE_CHECKING:
    from convswap.tutorial.lab.result import LabResult

HELP = "compile, check, time and rank your own kernel"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `convswap lab` and their arguments."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True, prog="convswap lab")

    def add(name: str, run_part: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, help=text)
        command.set_defaults(part=run_part)
        return command

    new = add("new", run_new, "write a kernel to start from")
    new.add_argument("file", metavar="FILE.cu", help="the file to write; it must not exist")
    new.add_argument(
        "--from", dest="rung", metavar="RUNG", help="copy a rung, such as ladder_04_shared_memory"
    )
    new.add_argument(
        "--what",
        default="course",
        metavar="WHAT",
        help="course, or conv for the whole op with stride, padding, groups and bias; default: course",
    )
    run_parser = add("run", run_run, "compile, check and time a kernel inside an ONNX Runtime session")
    run_parser.add_argument("source", metavar="FILE.cu", help="the kernel")
    _add_run_options(run_parser)
    run_parser.add_argument("--profile", action="store_true", help="read the card's counters, too, by CUPTI")
    run_parser.add_argument("--json", metavar="FILE", help="write the result as JSON")
    watch_parser = add("watch", run_watch, "run a kernel again each time that its file is saved")
    watch_parser.add_argument("source", metavar="FILE.cu", help="the kernel")
    _add_run_options(watch_parser)
    rank = add("rank", run_rank, "list correct kernels, fastest first, with the ladder as baselines")
    rank.add_argument("--card", metavar="C", help="a part of the card's name")
    rank.add_argument("--network", metavar="N", help="a part of the network's name")
    rank.add_argument("--html", metavar="FILE", help="write a page")
    submit = add("submit", run_submit, "run every file of a folder, for one table of a class")
    submit.add_argument("folder", metavar="DIR", help="a folder with one file NAME.cu for each student")
    _add_run_options(submit)
    submit.add_argument("--csv", metavar="FILE", help="write the table as CSV")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    target: Any = parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="a network, a layer of `convswap bench` or an ONNX file; default: ece408-2017-high",
    )
    target.completer = names_or_files(network_names)
    parser.add_argument("--batch", type=int, metavar="B", help="images in a timed run; default: 10,000 or 64")
    parser.add_argument("--device", metavar="D", help="cuda, or cpu for a check without the card")
    parser.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="time limit of one check; default: 10"
    )
    parser.add_argument(
        "--compute-capability",
        metavar="C",
        help="the compiler's target on a machine without a card; default: 9.0",
    )


def _add_to_ranking(result: LabResult) -> None:
    """Store a result in the ranking, with a note on standard error if that fails."""
    from convswap.tutorial.lab.ranking import remember

    try:
        remember(result)
    except ConvswapError as error:
        note(str(error))


def run(options: argparse.Namespace) -> int:
    """Run the lab's command that was chosen; return its exit status."""
    part: Callable[[argparse.Namespace], int] = options.part
    return part(options)


def run_new(options: argparse.Namespace) -> int:
    """Write a file; return the exit status."""
    from convswap.tutorial.lab.scaffold import new

    path = new(options.file, rung=options.rung, what=options.what)
    print(f"{path} is written: change it, then run it with convswap lab run {path}")
    return 0


def run_run(options: argparse.Namespace) -> int:
    """Run a kernel; return the exit status, 1 if it has a fault."""
    from convswap.tutorial.lab.api import run
    from convswap.tutorial.lab.report import print_result

    check_results(
        {"--json": options.json}, model=options.target, read={"the kernel that is read": options.source}
    )
    with progress_line() as progress:
        result = run(**arguments_of(run, options), progress=progress)
    _add_to_ranking(result)
    give_results(lambda: print_result(result, console()), options, result.to_json())
    return 0 if result.fault is None else 1


def run_watch(options: argparse.Namespace) -> int:
    """Run a kernel on each save, until it is interrupted."""
    from convswap.tutorial.lab.api import DEFAULT_TARGET, run, watch
    from convswap.tutorial.lab.report import print_result

    output = console()

    def show(result: LabResult | ConvswapError, seconds: float) -> None:
        if isinstance(result, ConvswapError):
            output.print(Text(f"NOT RUN: {result}"))
        else:
            _add_to_ranking(result)
            print_result(result, output)
        output.print(Text(f"{seconds:.1f} s after the save. Waiting for the next save; Ctrl-C ends.\n"))
        sys.stdout.flush()

    watch(on_result=show, **{"target": DEFAULT_TARGET, **arguments_of(run, options)})
    return 0


def run_rank(options: argparse.Namespace) -> int:
    """Print the ranking; return the exit status."""
    from convswap.tutorial.lab.ranking import ranked
    from convswap.tutorial.lab.report import print_ranking, ranking_html

    check_results({"--html": options.html})
    rows = ranked(card=options.card, network=options.network)
    show_and_write(lambda: print_ranking(rows, console()), (options.html, lambda: ranking_html(rows)))
    return 0


def run_submit(options: argparse.Namespace) -> int:
    """Run a class's kernels; return the exit status, 0 whatever their faults."""
    from convswap.tutorial.lab.api import run, submit
    from convswap.tutorial.lab.report import class_csv, print_class

    check_results({"--csv": options.csv}, model=options.target)
    with progress_line() as progress:
        results = submit(options.folder, **arguments_of(run, options), progress=progress)
    for result in results:
        _add_to_ranking(result)
    show_and_write(lambda: print_class(results, console()), (options.csv, lambda: class_csv(results)))
    return 0
