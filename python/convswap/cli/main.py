"""The command line: parses the arguments, runs the command, and returns the exit status.

Exit status: 0 success; 1 the outputs differ by more than the tolerance, `optimize` wrote no model, a kernel
of the lab has a fault, or something necessary is missing; 2 bad usage or bad input, with one line on standard
error; 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn, TextIO

from convswap.cli import (
    bench,
    calibrate,
    compare,
    completion,
    data,
    doctor,
    evaluate,
    explain,
    export,
    lab,
    ladder,
    optimize,
    profile,
    study,
    swap,
    train,
    tune,
    warm,
)
from convswap.errors import NO_ONNXRUNTIME, ConvswapError, out_of_memory_error, unknown_name
from convswap.runtime.packages import NAME, why_broken

# The help's sections, and the commands in each.
GROUPS: Mapping[str, tuple[ModuleType, ...]] = {
    "Create and change models": (export, optimize, swap, train),
    "Compare and benchmark": (compare, evaluate, bench, profile, study),
    "Algorithms and kernels": (explain, tune, calibrate, warm, ladder, lab),
    "Installation": (doctor, data, completion),
}

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `convswap` with `arguments` (by default those of the process) and return the exit status.

    This function changes the process: it replaces closed standard streams, and turns ONNX Runtime's telemetry
    off.
    """
    # ONNX Runtime reads this variable when it is imported. Uploads would disturb measurements.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # A closed stream, as by `>&-`, is None.
    sys.stdout, sys.stderr = sys.stdout or _null_stream(), sys.stderr or _null_stream()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal's encoding lacks must not stop a command.
            stream.reconfigure(errors="replace")
    try:
        parser = parser_of_all()
        completion.complete(parser)
        words = list(sys.argv[1:] if arguments is None else arguments)
        known = [_name(command) for group in GROUPS.values() for command in group]
        if words and not words[0].startswith("-") and words[0] not in known:
            raise unknown_name("command", words[0], known)
        options = parser.parse_args(words)
        options.words = words
        command: Command = options.command
        status = command(options)
        sys.stdout.flush()
        return status
    except ConvswapError as error:
        return _print_error(str(error))
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == NAME:
            return _print_error(NO_ONNXRUNTIME)
        if not (reason := why_broken()):
            raise
        return _print_error(f"the installed {NAME} is broken: {reason}; `convswap doctor` says what to type")
    except MemoryError as error:
        return _print_error(str(out_of_memory_error(error)))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader closed the pipe. Buffered output must not fail again when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            return _print_error(f"cannot write the output: {error.strerror}")
        return _print_error(f"cannot read or write '{error.filename}': {error.strerror}")


def _name(command: ModuleType) -> str:
    return command.__name__.rpartition(".")[2]


def _null_stream() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _print_error(message: str) -> int:
    print(f"convswap: {message}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise ConvswapError(f"{message}; see `{self.prog} --help`")


class _CommandParser(_Parser):
    """Reports unknown arguments itself: the parser of all commands would point to its own help."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0], self._option_string_actions, n=1)
            advice = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unknown arguments: {' '.join(unknown)}{advice}")
        return options, unknown


class _Version(argparse.Action):
    """Prints the package's version, which is looked up only here because that takes longer than parsing."""

    def __call__(self, parser: argparse.ArgumentParser, *_asked: Any, **_options: Any) -> NoReturn:
        from importlib.metadata import version

        print(f"convswap {version('convswap')}")
        parser.exit()


def parser_of_all() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="convswap",
        usage="convswap COMMAND ...",
        description="Fast convolutions for ONNX models in ONNX Runtime.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="print the version and exit"
    )
    commands = parser.add_subparsers(
        metavar="COMMAND",
        required=True,
        help=argparse.SUPPRESS,
        prog="convswap",
        parser_class=_CommandParser,
    )
    lines = []
    for title, group in GROUPS.items():
        lines.append(f"{title}:")
        for command in group:
            name = _name(command)
            command_parser = commands.add_parser(name, help=command.HELP)
            command_parser.set_defaults(command=command.run)
            command.add_arguments(command_parser)
            lines.append(f"  {name:12}{command.HELP}")
        lines.append("")
    parser.epilog = "\n".join([*lines, "Run `convswap COMMAND --help` for a command's options."])
    return parser


if __name__ == "__main__":
    sys.exit(main())
