"""`convswap doctor`: what is installed, what is missing, what to type."""

from __future__ import annotations

import argparse

from convswap.cli.results import console

HELP = "what is installed, what is missing, what to type"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `convswap doctor` takes."""


def run(options: argparse.Namespace) -> int:
    """Print what was found; return 0 where nothing needed is missing."""
    from convswap.doctor.diagnosis import all_needed_ok, diagnose, print_doctor

    findings = diagnose()
    print_doctor(findings, console())
    return 0 if all_needed_ok(findings) else 1
