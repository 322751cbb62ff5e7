"""The command line: reads the arguments, calls the package, prints, and sets the exit status.

Exit status: 0 all went well; 1 the answers differ by more than the tolerance, or something needed is missing;
2 bad usage or bad input, with one line on standard error; 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn, TextIO

from convswap.cli import (
    bench,
    compare,
    completion,
    data,
    doctor,
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
from convswap.errors import NO_ONNXRUNTIME, ConvswapError, out_of_memory_error
from convswap.runtime.packages import NAME, why_broken

# As the help lists them: what a title says, and its commands.
GROUPS: Mapping[str, tuple[ModuleType, ...]] = {
    "make and change models": (export, optimize, swap, train),
    "set a model against the default provider": (compare, bench, profile, study),
    "how convolutions are computed": (explain, tune, warm, ladder, lab),
    "this installation": (doctor, data, completion),
}

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
        parser = parser_of_all()
        completion.complete(parser)
        words = list(sys.argv[1:] if arguments is None else arguments)
        options = parser.parse_args(words)
        options.words = words
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
        return _refuse(str(out_of_memory_error(error)))
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


class _Version(argparse.Action):
    """Prints the version of the package, which is looked up only then: that takes longer than parsing."""

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
        metavar="COMMAND", required=True, help=argparse.SUPPRESS, prog="convswap"
    )
    listed = []
    for title, group in GROUPS.items():
        listed.append(f"{title}:")
        for command in group:
            name = command.__name__.rpartition(".")[2]
            own = commands.add_parser(name, help=command.HELP)
            own.set_defaults(command=command.run)
            command.add_arguments(own)
            listed.append(f"  {name:12}{command.HELP}")
        listed.append("")
    parser.epilog = "\n".join([*listed, "`convswap COMMAND --help` tells what each takes."])
    return parser


if __name__ == "__main__":
    sys.exit(main())
