"""`convswap lab`: bring a kernel of your own."""

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

HELP = "bring your own kernel: compiled, checked, timed and ranked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `convswap lab` takes."""
    own = parser.add_subparsers(metavar="COMMAND", required=True, prog="convswap lab")

    def add(name: str, run_part: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = own.add_parser(name, help=text)
        added.set_defaults(part=run_part)
        return added

    new = add("new", run_new, "write a kernel to begin with")
    new.add_argument("file", metavar="FILE.cu", help="what is written; it must not be there")
    new.add_argument(
        "--from", dest="rung", metavar="RUNG", help="a copy of a rung, such as ladder_04_shared_memory"
    )
    new.add_argument(
        "--what",
        default="course",
        metavar="WHAT",
        help="course, or conv for the whole op: stride, padding, groups, bias; default: course",
    )
    one = add("run", run_run, "compile, check and time a kernel inside an ONNX Runtime session")
    one.add_argument("source", metavar="FILE.cu", help="the kernel")
    _add_how(one)
    one.add_argument("--profile", action="store_true", help="read the card's counters, too, by CUPTI")
    one.add_argument("--json", metavar="FILE", help="write the result as JSON")
    watched = add("watch", run_watch, "run a kernel again each time that its file is saved")
    watched.add_argument("source", metavar="FILE.cu", help="the kernel")
    _add_how(watched)
    rank = add("rank", run_rank, "kernels that were right, fastest first, with the ladder as marks")
    rank.add_argument("--card", metavar="C", help="a part of the card's name")
    rank.add_argument("--network", metavar="N", help="a part of the network's name")
    rank.add_argument("--html", metavar="FILE", help="write a page")
    submit = add("submit", run_submit, "run every file of a folder: one table for a class")
    submit.add_argument("folder", metavar="DIR", help="with a file NAME.cu of each student")
    _add_how(submit)
    submit.add_argument("--csv", metavar="FILE", help="write the table as CSV")


def _add_how(parser: argparse.ArgumentParser) -> None:
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
        "--seconds", type=float, default=10.0, metavar="S", help="what one check may take; default: 10"
    )
    parser.add_argument(
        "--compute-capability", metavar="C", help="what is compiled for without a card; default: 9.0"
    )


def _keep(result: LabResult) -> None:
    """Put a result into the ranking; where that cannot be written, say so, and lose nothing else."""
    from convswap.tutorial.lab.ranking import remember

    try:
        remember(result)
    except ConvswapError as error:
        note(str(error))


def run(options: argparse.Namespace) -> int:
    """Do what one of the lab's own commands does; return its exit status."""
    part: Callable[[argparse.Namespace], int] = options.part
    return part(options)


def run_new(options: argparse.Namespace) -> int:
    """Write a file; return the exit status."""
    from convswap.tutorial.lab.scaffold import new

    path = new(options.file, rung=options.rung, what=options.what)
    print(f"{path} is there: change it, and see what comes of it with convswap lab run {path}")
    return 0


def run_run(options: argparse.Namespace) -> int:
    """Run a kernel; return the exit status, 1 where something is wrong with it."""
    from convswap.tutorial.lab.api import run
    from convswap.tutorial.lab.report import print_result

    check_results(
        {"--json": options.json}, model=options.target, read={"the kernel that is read": options.source}
    )
    with progress_line() as progress:
        result = run(**arguments_of(run, options), progress=progress)
    _keep(result)
    give_results(lambda: print_result(result, console()), options, result.to_json())
    return 0 if result.fault is None else 1


def run_watch(options: argparse.Namespace) -> int:
    """Run a kernel on each save, until it is interrupted."""
    from convswap.tutorial.lab.api import DEFAULT_TARGET, run, watch
    from convswap.tutorial.lab.report import print_result

    output = console()

    def tell(result: LabResult | ConvswapError, seconds: float) -> None:
        if isinstance(result, ConvswapError):
            output.print(Text(f"NOT RUN: {result}"))
        else:
            _keep(result)
            print_result(result, output)
        output.print(Text(f"{seconds:.1f} s after the save; waiting for the next, Ctrl-C ends it.\n"))
        sys.stdout.flush()

    watch(told=tell, **{"target": DEFAULT_TARGET, **arguments_of(run, options)})
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
    """Run a class's kernels; return the exit status, 0 whatever is wrong with them."""
    from convswap.tutorial.lab.api import run, submit
    from convswap.tutorial.lab.report import class_csv, print_class

    check_results({"--csv": options.csv}, model=options.target)
    with progress_line() as progress:
        results = submit(options.folder, **arguments_of(run, options), progress=progress)
    for result in results:
        _keep(result)
    show_and_write(lambda: print_class(results, console()), (options.csv, lambda: class_csv(results)))
    return 0
