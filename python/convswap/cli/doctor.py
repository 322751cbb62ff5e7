"""`convswap doctor`: what is installed, what is missing, what to type."""

from __future__ import annotations

import argparse
from typing import Any

from convswap.cli.results import console

HELP = "what is installed, what is missing, what to type"


def add_parser(commands: Any) -> None:
    """Add `convswap doctor`."""
    parser = commands.add_parser("doctor", help=HELP)
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print what was found; return 0 where nothing needed is missing."""
    from convswap.doctor.diagnosis import all_needed_ok, diagnose, print_doctor

    findings = diagnose()
    print_doctor(findings, console())
    return 0 if all_needed_ok(findings) else 1
