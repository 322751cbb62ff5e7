"""The entry point of `convswap` and of `python -m convswap`."""

import signal
import sys


def run() -> int:
    """Run the command line; return its exit status.

    An interrupt during the imports ends the process at once. A KeyboardInterrupt there would make some
    modules believe that a library is missing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # false if the parent process ignores interrupts
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from convswap.cli.main import main

    signal.signal(signal.SIGINT, handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
