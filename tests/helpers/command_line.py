"""Calls the command line in this process with arguments that it must refuse."""

from __future__ import annotations

from convswap.cli.main import main


def refusal(capsys, *arguments):
    """Run the command, which must refuse with one line on standard error, and return the line."""
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    message = [line for line in lines if line.startswith("convswap: ")][-1]
    assert lines[-1] == message
    assert not any("Traceback" in line for line in lines)
    return message


def only_line_of_refusal(capsys, *arguments: str) -> str:
    """Run the command, which must refuse with one line on standard error and no other, and return it."""
    assert main(list(arguments)) == 2
    (message,) = capsys.readouterr().err.strip().splitlines()
    return message
