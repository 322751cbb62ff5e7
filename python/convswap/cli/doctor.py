"""`convswap doctor`: check the installation."""

from __future__ import annotations

import argparse

from convswap.cli.results import console

HELP = "check the installation: what is missing, and the command that installs it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap doctor`: none."""


def run(options: argparse.Namespace) -> int:
    """Print the findings; return 0 if nothing necessary is missing."""
    from convswap.doctor.diagnosis import all_needed_ok, diagnose, print_doctor

    findings = diagnose()
    print_doctor(findings, console())
    return 0 if all_needed_ok(findings) else 1
