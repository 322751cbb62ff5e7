"""A fresh process that makes one session and runs it once; `bench.first_run` starts it.

The process takes a job, a JSON object, and prints a JSON object with the milliseconds of session creation and
run. Session creation starts from a model in memory, and registers convswap's library if the model is swapped.
The times do not include reading and serialising the model, checking the session and binding the inputs.
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
from convswap.runtime.library import using_op_libraries
from convswap.runtime.sessions import (
    DEFAULT,
    BoundRun,
    check_session,
    convswap_side,
    load_session,
    on_device,
    session_source,
)


def main(job: str) -> int:
    """Run `job`, a JSON text; return the exit status."""
    request = json.loads(job)
    try:
        with using_op_libraries(request.get("op_libraries", ())):
            print(json.dumps(_timed(request)))
    except ConvswapError as error:
        return _refuse(error)
    except MemoryError as error:
        return _refuse(out_of_memory_error(error))
    return 0


def _timed(request: Mapping[str, Any]) -> dict[str, float]:
    device = choose_device(request["device"])
    side = convswap_side(device, request["precision"]) if request["swapped"] else DEFAULT
    model = onnx.load(request["model"])
    # This loads the libraries, and starts the driver and the CUDA provider, also if the model has no inputs.
    on_device({"x": np.zeros(1, np.float32)}, device)
    feeds = on_device(_feeds(model, request), device)
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


def _feeds(model: onnx.ModelProto, request: Mapping[str, Any]) -> Feeds:
    """Return the user's input values, or seeded random values of the requested shapes."""
    inputs = declared_inputs(model_from_proto(model))
    if request.get("values") is not None:
        with np.load(request["values"]) as arrays:
            values = {x.name: arrays[f"arr_{index}"] for index, x in enumerate(inputs)}
        return {x.name: values[x.name] if x.is_numpys else values[x.name].view(x.dtype) for x in inputs}
    shapes = request["input_shapes"]
    with_shapes = [replace(x, shape=tuple(shapes[x.name])) for x in inputs]
    return random_feeds(with_shapes, batch=1, seed=0)


def _refuse(error: ConvswapError) -> int:
    print(error, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
