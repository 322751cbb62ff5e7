"""`convswap`, and `python -m convswap`, which is the same."""

import signal
import sys


def run() -> int:
    """Run the command line; return its exit status.

    An interrupt while its modules are loaded ends the process as any signal does: some would take Python's
    exception for a library that is missing.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where whoever started us has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from convswap.cli.main import main

    signal.signal(signal.SIGINT, handler)
    return main()


if __name__ == "__main__":
    sys.exit(run())
