"""A fresh process that makes one session and runs it once; see `convswap.first_run`, which starts it.

It is given a job, as a JSON object, and prints the milliseconds of both as another. The clock runs while the
session is made of a model in memory, our library registered on our side, and while it runs. It stands still
while the model is read and serialised, and while the session is checked and its inputs are bound.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from convswap.errors import ConvswapError, out_of_memory_error
from convswap.graph.model_file import model_from_proto
from convswap.inputs.feeds import Feeds, declared_inputs, random_feeds
from convswap.runtime.device import choose_device
from convswap.runtime.library import sessions_with
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
        with sessions_with(asked.get("op_libraries", ())):
            print(json.dumps(_timed(asked)))
    except ConvswapError as error:
        return _refuse(error)
    except MemoryError as error:
        return _refuse(out_of_memory_error(error))
    return 0


def _timed(asked: Mapping[str, Any]) -> dict[str, float]:
    device = choose_device(asked["device"])
    side = our_side(device, asked["precision"]) if asked["ours"] else DEFAULT
    model = onnx.load(asked["model"])
    # Loads the libraries, starts the driver and ONNX Runtime's part for the card. The inputs may be none.
    on_device({"x": np.zeros(1, np.float32)}, device)
    feeds = on_device(_feeds(model, asked), device)
    with session_source(model) as source:
        begin = time.perf_counter()
        session = load_session(source, side, device)
        session_seconds = time.perf_counter() - begin
    check_session(session, side, device)
    run = BoundRun(session, feeds, device)
    begin = time.perf_counter()
    run.once()
    run_seconds = time.perf_counter() - begin
    return {"session_ms": session_seconds * 1e3, "run_ms": run_seconds * 1e3}


def _feeds(model: onnx.ModelProto, asked: Mapping[str, Any]) -> Feeds:
    """Return the values that a user gave, or seeded random ones of the shapes asked for."""
    inputs = declared_inputs(model_from_proto(model))
    if asked.get("values") is not None:
        with np.load(asked["values"]) as arrays:
            found = {one.name: arrays[f"arr_{index}"] for index, one in enumerate(inputs)}
        return {
            one.name: found[one.name] if one.is_numpys else found[one.name].view(one.dtype) for one in inputs
        }
    shapes = asked["input_shapes"]
    shaped = [replace(one, shape=tuple(shapes[one.name])) for one in inputs]
    return random_feeds(shaped, batch=1, seed=0)


def _refuse(error: ConvswapError) -> int:
    print(error, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
