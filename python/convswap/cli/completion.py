"""`convswap completion`: what a shell needs to complete the command line, by argcomplete."""

from __future__ import annotations

import argparse
import os
from typing import Any

from convswap.errors import ConvswapError, unknown_name

SHELLS = ("bash", "zsh", "fish")


HELP = "print what completes this command line in a shell"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `convswap completion` takes."""
    parser.add_argument("shell", metavar="SHELL", help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def run(options: argparse.Namespace) -> int:
    """Print the shell's own words; return the exit status."""
    if options.shell not in SHELLS:
        raise unknown_name("shell", options.shell, SHELLS)
    print(_argcomplete().shellcode(["convswap"], shell=options.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer, where a shell asks, what the words so far may go on with, and end the process; else return."""
    if "_ARGCOMPLETE" in os.environ:
        _argcomplete().autocomplete(parser)


def network_names(**_asked: Any) -> list[str]:
    """Return what may stand for a model beside files, as argcomplete asks for it."""
    from convswap.models import ALL_NETWORKS

    return sorted(ALL_NETWORKS)


def names_or_files(names: Any) -> Any:
    """Return a completer of `names`, and of files."""

    def complete_both(**asked: Any) -> list[str]:
        return [*names(**asked), *_argcomplete().completers.FilesCompleter()(**asked)]

    return complete_both


def suite_names(**_asked: Any) -> list[str]:
    """Return the suites of `convswap bench`."""
    from convswap.timing.suites import SUITES

    return sorted(SUITES)


def _argcomplete() -> Any:
    try:
        import argcomplete
    except ModuleNotFoundError as error:
        if error.name != "argcomplete":
            raise
        raise ConvswapError(
            "completing needs argcomplete, which is not installed: pip install argcomplete"
        ) from None
    return argcomplete
