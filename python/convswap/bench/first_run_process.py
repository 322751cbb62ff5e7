"""A fresh process that makes one session and runs it once; see `convswap.first_run`, which starts it.

It is given a job, as a JSON object, and prints the milliseconds of both as another. The clock runs while the
session is made of a model in memory, our library registered on our side, and while it runs. It stands still
while the model is read and serialised, and while the session is checked and its inputs are bound.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import numpy as np
import onnx

from convswap.errors import ConvswapError, short_of_memory
from convswap.inputs.feeds import declared_inputs, random_feeds
from convswap.runtime.device import choose_device
from convswap.runtime.sessions import (
    DEFAULT,
    BoundRun,
    check_session,
    load_session,
    on_device,
    our_side,
    session_source,
)


def main(job: str) -> int:
    """Do `job`; return the exit status."""
    asked = json.loads(job)
    try:
        device = choose_device(asked["device"])
        side = our_side(device, asked["precision"]) if asked["ours"] else DEFAULT
        model = onnx.load(asked["model"])
        # Loads the libraries, starts the driver and ONNX Runtime's part for the card. The inputs may be none.
        on_device({"x": np.zeros(1, np.float32)}, device)
        shapes = asked["input_shapes"]
        inputs = [replace(one, shape=tuple(shapes[one.name])) for one in declared_inputs(model)]
        feeds = on_device(random_feeds(inputs, batch=1, seed=0), device)
        with session_source(model) as source:
            begin = time.perf_counter()
            session = load_session(source, side, device)
            session_seconds = time.perf_counter() - begin
        check_session(session, side, device)
        run = BoundRun(session, feeds, device)
        begin = time.perf_counter()
        run.once()
        run_seconds = time.perf_counter() - begin
    except ConvswapError as error:
        return _refuse(error)
    except MemoryError as error:
        return _refuse(short_of_memory(error))
    print(json.dumps({"session_ms": session_seconds * 1e3, "run_ms": run_seconds * 1e3}))
    return 0


def _refuse(error: ConvswapError) -> int:
    print(error, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
