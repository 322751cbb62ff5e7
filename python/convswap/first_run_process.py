"""A fresh process that makes one session and runs it once; see `convswap.first_run`, which starts it.

It is given a job, as a JSON object, and prints the milliseconds of both as another.
"""

from __future__ import annotations

import json
import sys
import time

import onnx

from convswap.device import choose_device
from convswap.errors import ConvswapError
from convswap.feeds import declared_inputs, random_feeds
from convswap.sessions import DEFAULT, BoundRun, make_session, on_device, our_side


def main(job: str) -> int:
    """Do `job`; return the exit status."""
    asked = json.loads(job)
    try:
        device = choose_device(asked["device"])
        side = our_side(device, asked["precision"]) if asked["ours"] else DEFAULT
        model = onnx.load(asked["model"])
        # Puts the inputs there: loads the libraries, starts the driver and ONNX Runtime's part for the card.
        feeds = on_device(random_feeds(declared_inputs(model), asked["batch"], seed=0), device)
        begin = time.perf_counter()
        run = BoundRun(make_session(model, side, device), feeds, device)
        made = time.perf_counter()
        run.once()
        end = time.perf_counter()
    except ConvswapError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"session_ms": (made - begin) * 1e3, "run_ms": (end - made) * 1e3}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
