"""`convswap train`: train a course network."""

from __future__ import annotations

import argparse
from typing import Any

from convswap.cli.arguments import arguments_of
from convswap.cli.completion import network_names
from convswap.cli.results import check_results, progress_line, show_and_write

HELP = "train a course network with PyTorch and store its weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `convswap train`."""
    network: Any = parser.add_argument("network", metavar="NETWORK", help="one of `convswap export --list`")
    network.completer = network_names
    parser.add_argument("-o", "--output", metavar="FILE.npz", help="default: NETWORK.trained.npz")
    parser.add_argument(
        "--data", default="fashion-mnist", metavar="NAME", help="fashion-mnist (default) or synthetic"
    )
    parser.add_argument("--images", type=int, metavar="N", help="use the first N images; default: all")
    parser.add_argument(
        "--epochs", type=int, metavar="N", help="default: the network's own number, usually 24"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument("--device", metavar="D", help="cuda or cpu; default: cuda if PyTorch sees a card")


def run(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    from convswap.export import train_network

    output = options.output or f"{options.network}.trained.npz"
    check_results({"-o": output})
    with progress_line() as progress:
        trained = train_network(options.network, **arguments_of(train_network, options), progress=progress)
    summary = (
        f"{output}: {len(trained.content)} bytes, accuracy {trained.test_accuracy:.4f} of the test images "
        f"after loading, {trained.held_out_accuracy:.4f} of the training images held out"
    )
    show_and_write(lambda: print(summary), (output, lambda: trained.content))
    return 0
