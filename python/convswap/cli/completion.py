"""`convswap completion`: print the shell code that completes the command line, by argcomplete."""

from __future__ import annotations

import argparse
import os
from typing import Any

from convswap.errors import ConvswapError, unknown_name

SHELLS = ("bash", "zsh", "fish")


HELP = "print shell code that completes this command line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap completion`."""
    parser.add_argument("shell", metavar="SHELL", help=f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")


def run(options: argparse.Namespace) -> int:
    """Print the shell code; return the exit status."""
    if options.shell not in SHELLS:
        raise unknown_name("shell", options.shell, SHELLS)
    print(_argcomplete().shellcode(["convswap"], shell=options.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Print completions and end the process if a shell asks for them; else return."""
    if "_ARGCOMPLETE" in os.environ:
        _argcomplete().autocomplete(parser)


def network_names(**_arguments: Any) -> list[str]:
    """Return the names of all networks, as a completer of argcomplete."""
    from convswap.models import ALL_NETWORKS

    return sorted(ALL_NETWORKS)


def names_or_files(names: Any) -> Any:
    """Return a completer of files and of the names that the completer `names` gives."""

    def complete_both(**arguments: Any) -> list[str]:
        return [*names(**arguments), *_argcomplete().completers.FilesCompleter()(**arguments)]

    return complete_both


def suite_names(**_arguments: Any) -> list[str]:
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
            "completion needs argcomplete, which is not installed: pip install argcomplete"
        ) from None
    return argcomplete
