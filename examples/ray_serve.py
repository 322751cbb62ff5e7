"""Serve a model of `convswap optimize` by Ray Serve, which runs the samples of waiting requests as one batch.

    pip install 'ray[serve]'
    python examples/ray_serve.py faster.onnx
    curl --json @sample.json http://127.0.0.1:8000    # one sample of the first input, as nested lists

The reply is that sample's part of the first output.
"""

import argparse
from typing import Any

import convswap
import numpy as np
import onnxruntime
import ray
from ray import serve
from starlette.requests import Request


@serve.deployment
class Model:
    """A session of the model, on a card if there is one."""

    def __init__(self, path: str) -> None:
        """Load the model."""
        providers = ["CPUExecutionProvider"]
        if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
            providers.insert(0, "CUDAExecutionProvider")
        options = onnxruntime.SessionOptions()
        convswap.register(options)
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def run(self, samples: list[np.ndarray]) -> list[np.ndarray]:
        """Return the output of each sample; Serve gathers `samples` from single calls."""
        feeds = {self.session.get_inputs()[0].name: np.stack(samples)}
        return list(self.session.run(None, feeds)[0])

    async def __call__(self, request: Request) -> Any:
        """Answer one request."""
        output = await self.run(np.asarray(await request.json(), np.float32))
        return output.tolist()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a model by Ray Serve.")
    parser.add_argument("model", help="an ONNX file, at this path on every node")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    ray.init(include_dashboard=False)
    serve.start(http_options={"port": arguments.port})
    cards = min(1, int(ray.cluster_resources().get("GPU", 0)))
    application = Model.options(ray_actor_options={"num_gpus": cards}).bind(arguments.model)
    serve.run(application, blocking=True)
