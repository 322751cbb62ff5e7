"""The configuration of docs/triton.md is one by Triton's schema, and fits the model of the page."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from build_tools import REPOSITORY
from convswap.export import export_network
from google.protobuf import text_format
from test_pages import blocks

pytestmark = pytest.mark.extended


def test_the_page_configures_its_model(monkeypatch):
    if (client := find_spec("tritonclient")) is None:
        pytest.skip("tritonclient is not installed: make extended")
    # The package around the schema would import gRPC.
    monkeypatch.syspath_prepend(Path(client.origin).parent / "grpc")
    import model_config_pb2

    text = dict(blocks(REPOSITORY / "docs/triton.md"))["protobuf"]
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 32)
    assert list(config.model_operations.op_library_filename) == ["/models/faster/libconvswap.so"]
    assert config.HasField("dynamic_batching")
    graph = export_network("ece408-2019fa").graph
    for side in ("input", "output"):
        (value,), (declared,) = getattr(graph, side), getattr(config, side)
        batch, *dims = value.type.tensor_type.shape.dim
        assert (declared.name, list(declared.dims)) == (value.name, [dim.dim_value for dim in dims])
        assert batch.dim_param and declared.data_type == model_config_pb2.TYPE_FP32
