"""External data: the alignment in written files, and the links that are followed."""

from __future__ import annotations

import os
from pathlib import Path

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
import swap_models as models
from convswap.errors import ConvswapError
from convswap.graph.swap import swap
from convswap.planning.explain import explain
from onnx import TensorProto, helper, numpy_helper
from op_sessions import W, X, conv_model, make_session, run
from refused import refused

MEBIBYTE = 1024 * 1024
CPU = ["CPUExecutionProvider"]


def with_external_data(model: bytes, folder: Path, data: str = "data.bin") -> Path:
    """Write `model` to `folder`, with all constants packed into the file `data` there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(onnx.load_from_string(model), path, save_as_external_data=True, location=data, size_threshold=0)
    return path


def with_location(path: Path, location: str) -> Path:
    """Give all external data of the model in `path` another location."""
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = location
    path.write_bytes(proto.SerializeToString())
    return path


def offsets(path: Path) -> dict[str, int]:
    """Return the offsets of the external tensors of the model in `path`."""
    return {
        tensor.name: next(int(entry.value) for entry in tensor.external_data if entry.key == "offset")
        for tensor in onnx.load(path, load_external_data=False).graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }


def odd_sizes() -> onnx.ModelProto:
    """Return constants of odd lengths, of 1 MiB, slightly less and slightly more, and an empty one."""
    arrays = {
        "odd": np.arange(107, dtype=np.int8),
        "w": W,
        "mebibyte": np.arange(MEBIBYTE, dtype=np.uint8),
        "less": np.arange(MEBIBYTE - 1, dtype=np.uint8),
        "more": np.arange(MEBIBYTE + 3, dtype=np.uint8),
        "scalar": np.array(3.5, np.float64),
        "nothing": np.zeros((0, 4), np.float32),
    }
    return models.make_model(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )


def test_data_files_have_large_tensors_on_pages_and_small_ones_on_cache_lines(tmp_path):
    original = odd_sizes()
    source = with_external_data(original.SerializeToString(), tmp_path)
    assert offsets(source)["w"] % 4 != 0
    target = tmp_path / "out.onnx"
    swap(source).save(target)
    offset_of = offsets(target)
    assert list(offset_of) == [tensor.name for tensor in original.graph.initializer]
    large = {"mebibyte", "more"}
    assert all(offset_of[name] % 4096 == 0 for name in large)
    assert all(offset % 64 == 0 for offset in offset_of.values())
    # Only large tensors are aligned to pages.
    assert offset_of["w"] == 128
    written = {tensor.name: tensor for tensor in onnx.load(target).graph.initializer}
    for tensor in original.graph.initializer:
        expected = numpy_helper.to_array(tensor)
        np.testing.assert_array_equal(numpy_helper.to_array(written[tensor.name]), expected)
    make_session(str(target))


def test_a_swapped_model_that_is_saved_again_is_aligned_where_its_own_data_file_is_not(tmp_path):
    source = with_external_data(odd_sizes().SerializeToString(), tmp_path, "model.onnx.data")
    result = swap(source)
    result.save(source, force=True)
    assert all(offset % 64 == 0 for offset in offsets(source).values())


# Links


def hub_cache(folder: Path, model: bytes) -> Path:
    """Store `model` like a Hugging Face cache: both files in blobs/, and links to them in snapshots/."""
    with_external_data(model, folder / "blobs", "model.onnx_data")
    snapshot = folder / "snapshots" / "revision" / "onnx"
    snapshot.mkdir(parents=True)
    for name, blob in (("model.onnx", "aaaa"), ("model.onnx_data", "bbbb")):
        (folder / "blobs" / name).rename(folder / "blobs" / blob)
        (snapshot / name).symlink_to(f"../../../blobs/{blob}")
    return snapshot / "model.onnx"


def test_a_model_in_a_hugging_face_cache_is_swapped_compared_and_explained(tmp_path):
    plain = conv_model(domain="")
    path = hub_cache(tmp_path, plain)
    result = swap(path)
    assert result.swapped == ("conv1",)
    # The location stays relative to the model's own folder.
    (weights,) = result.to_proto().graph.initializer
    assert ("location", "model.onnx_data") in {(entry.key, entry.value) for entry in weights.external_data}
    result.save(tmp_path / "out.onnx")
    expected = run(make_session(plain, ours=False), X)
    np.testing.assert_allclose(
        run(make_session(str(tmp_path / "out.onnx")), X), expected, rtol=1e-4, atol=1e-5
    )
    assert convswap.compare(path, device="cpu", time_layers=False).within_tolerance
    assert len(explain(path, device="cpu").convs) == 1


def test_linked_data_of_constants_and_branches_are_read(tmp_path):
    values = np.arange(200, dtype=np.float32)
    original = models.conv_in_if()
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(values, "c"))
    original.graph.node.insert(0, constant)
    path = hub_cache(tmp_path, original.SerializeToString())
    proto = onnx.load(path, load_external_data=False)
    tensor = proto.graph.node[0].attribute[0].t
    data = tmp_path / "blobs" / "bbbb"
    with data.open("ab") as file:
        offset = file.tell()
        file.write(values.tobytes())
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "model.onnx_data"), ("offset", offset), ("length", values.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    (tmp_path / "blobs" / "aaaa").write_bytes(proto.SerializeToString())
    constant = swap(path).to_proto().graph.node[0]
    np.testing.assert_array_equal(numpy_helper.to_array(constant.attribute[0].t), values)


def test_a_linked_file_is_not_overwritten_without_force(tmp_path):
    path = hub_cache(tmp_path, conv_model(domain=""))
    result = swap(path)
    (tmp_path / "out.onnx.data").symlink_to(tmp_path / "blobs" / "bbbb")
    for target in (path, tmp_path / "out.onnx"):
        with pytest.raises(ConvswapError, match="is a file that the model was read from"):
            result.save(target)


@pytest.mark.parametrize("link", ["hard link", "link to a hard link"])
def test_data_with_a_second_name_are_read_as_onnxruntime_reads_them(link, tmp_path):
    """`uv` and conda install the files of a package as hard links."""
    plain = conv_model(domain="")
    path = with_external_data(plain, tmp_path / "model")
    data = path.parent / "data.bin"
    os.link(data, tmp_path / "kept.bin")
    if link == "link to a hard link":
        data.rename(path.parent / "real.bin")
        data.symlink_to("real.bin")
    expected = run(make_session(plain, ours=False), X)
    np.testing.assert_array_equal(run(make_session(str(path), ours=False), X), expected)
    result = swap(path)
    # The location stays relative to the model's own folder.
    (weights,) = result.to_proto().graph.initializer
    assert ("location", "data.bin") in {(entry.key, entry.value) for entry in weights.external_data}
    result.save(tmp_path / "out.onnx")
    actual = run(make_session(str(tmp_path / "out.onnx")), X)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert convswap.compare(path, device="cpu", time_layers=False).within_tolerance
    assert len(explain(path, device="cpu").convs) == 1
    (tmp_path / "again.onnx.data").symlink_to(tmp_path / "kept.bin")
    with pytest.raises(ConvswapError, match="is a file that the model was read from"):
        result.save(tmp_path / "again.onnx")


def test_a_second_name_of_a_file_outside_does_not_let_a_location_lead_there(tmp_path):
    path = with_external_data(conv_model(domain=""), tmp_path / "model")
    (path.parent / "data.bin").rename(tmp_path / "secret.bin")
    os.link(tmp_path / "secret.bin", tmp_path / "other.bin")
    with_location(path, "../secret.bin")
    assert "is outside the base directory" in refusal(path)


def refusal(path: Path) -> str:
    """Return the error for `path`; ONNX Runtime must refuse it too."""
    with pytest.raises(Exception, match=r"[Ee]xternal data"):
        onnxruntime.InferenceSession(path, providers=CPU)
    with refused() as caught:
        swap(path)
    return str(caught.value)


def test_a_link_out_of_the_folder_of_a_model_that_is_no_link_is_refused(tmp_path):
    path = with_external_data(conv_model(domain=""), tmp_path / "model")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "model" / "data.bin").rename(tmp_path / "secrets" / "data.bin")
    (tmp_path / "model" / "data.bin").symlink_to("../secrets/data.bin")
    assert "resolves via symlink to" in refusal(path)


def test_a_link_out_of_both_folders_of_a_linked_model_is_refused(tmp_path):
    path = hub_cache(tmp_path, conv_model(domain=""))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "blobs" / "bbbb").rename(tmp_path / "secrets" / "bbbb")
    (path.parent / "model.onnx_data").unlink()
    (path.parent / "model.onnx_data").symlink_to("../../../secrets/bbbb")
    assert "resolves via symlink to" in refusal(path)


def test_a_location_that_leads_out_of_both_folders_is_refused(tmp_path):
    path = hub_cache(tmp_path, conv_model(domain=""))
    (tmp_path / "secret.bin").write_bytes((tmp_path / "blobs" / "bbbb").read_bytes())
    with_location(path, "../../../secret.bin")
    assert "is outside the base directory" in refusal(path)


def test_an_absolute_location_is_refused_even_for_a_linked_model(tmp_path):
    path = hub_cache(tmp_path, conv_model(domain=""))
    with_location(path, os.fspath(tmp_path / "blobs" / "bbbb"))
    assert "is outside the base directory" in refusal(path)


@pytest.mark.parametrize("use", [swap, lambda model: convswap.compare(model, device="cpu")])
def test_a_message_reads_external_data_of_the_current_folder_alone(use, tmp_path, monkeypatch):
    path = with_external_data(conv_model(domain=""), tmp_path / "model")
    (tmp_path / "secret.bin").write_bytes((tmp_path / "model" / "data.bin").read_bytes())
    monkeypatch.chdir(path.parent)
    use(onnx.load(path, load_external_data=False))
    for location in ("../secret.bin", os.fspath(tmp_path / "secret.bin")):
        with_location(path, location)
        with pytest.raises(ConvswapError, match="is outside the base directory"):
            use(onnx.load(path, load_external_data=False))


def test_links_that_lead_in_a_circle_are_a_missing_file(tmp_path):
    path = hub_cache(tmp_path, conv_model(domain=""))
    (tmp_path / "blobs" / "bbbb").unlink()
    (tmp_path / "blobs" / "bbbb").symlink_to(path.parent / "model.onnx_data")
    with pytest.raises(ConvswapError, match=r"'model\.onnx_data', which is missing"):
        swap(path)
