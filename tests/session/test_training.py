"""Training: the module of a network's declaration learns, and the stored weights are the learned weights."""

from __future__ import annotations

import builtins
import dataclasses
import sys

import numpy as np
import onnx
import pytest
from command_line import refusal
from convswap.cli.main import main
from convswap.data import datasets
from convswap.errors import ConvswapError
from convswap.export import export_network, train_network
from convswap.export.builder import build
from convswap.export.training import Recipe, recipe_for
from convswap.models import NETWORKS, find, pack_weights, seeded_weights, unpack_weights
from convswap.models.quantisation import dequantise, quantise
from convswap.models.stored_weights import four_bit_parameters
from op_sessions import onnx_outputs

pytestmark = [pytest.mark.slow, pytest.mark.extended]

NETWORK = "ece408-2017-high"


@pytest.fixture(autouse=True)
def fewer_test_images(monkeypatch):
    """Make data sets give 2,000 of their 10,000 test images by default."""
    load = datasets.load

    def load_fewer(name, *, split="test", images=None, **options):
        fewer = 2000 if split == "test" and images is None else images
        return load(name, split=split, images=fewer, **options)

    monkeypatch.setattr(datasets, "load", load_fewer)


def onnx_run(model, images):
    return onnx_outputs(model, {"image": images})[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_module_computes_what_the_exported_model_computes(torch, name):
    from convswap.export.torch_network import torch_network, weights_of

    network = find(name)
    weights = seeded_weights(network)
    images = datasets.load("synthetic", images=4, image_size=network.image_size).images
    module = torch_network(network, weights)
    with torch.no_grad():
        logits = module(torch.from_numpy(images))
        from_bytes = module(torch.from_numpy(images.astype(np.uint8)))
    expected = onnx_run(build(network, weights, {}), images)
    # float32 sums of up to 20,184 products in another order, on probabilities up to 1.
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), expected, atol=1e-4)
    assert expected.max(axis=1).min() > 0.12
    assert torch.equal(from_bytes, logits)
    assert [name for name, _ in module.named_parameters()] == list(weights)
    for name, array in weights_of(network, module).items():
        np.testing.assert_array_equal(array, weights[name])


def test_rounding_on_the_way_is_what_storing_does(torch):
    from convswap.export.torch_network import rounded_to_four_bits

    random = np.random.default_rng(3)
    array = random.normal(size=(40, 77)).astype(np.float32) * 10.0 ** random.integers(-7, 2, (40, 77))
    array = array.astype(np.float32)
    array.ravel()[64:96] = 0
    actual = rounded_to_four_bits(torch.from_numpy(array)).numpy()
    np.testing.assert_array_equal(actual, dequantise(*quantise(array), array.shape))


def test_gradients_pass_the_rounding(torch):
    from convswap.export.torch_network import FourBits

    weight = torch.linspace(-1, 1, 64).requires_grad_()
    factors = torch.arange(64.0)
    (FourBits()(weight) * factors).sum().backward()
    assert torch.equal(weight.grad, factors)


def test_two_steps_lower_the_loss_and_change_every_parameter(torch):
    from convswap.export.training import TrainingRun

    network = find("ece408-2019sp")
    data = datasets.load("synthetic", split="train", images=64, image_size=48)
    pixels, labels = torch.from_numpy(data.images.astype(np.uint8)), torch.from_numpy(data.labels)
    initial = seeded_weights(network)
    recipe = Recipe(epochs=3, batch=64, learning_rate=1e-4, warm_up=0, rounded=0)
    run = TrainingRun(network, initial, recipe, steps=1, seed=0, device="cpu")
    losses = [run.epoch(number, pixels, labels) for number in (1, 2)]
    assert losses[1] < losses[0]
    assert not run.rounded
    for name, array in run.weights().items():
        assert np.abs(array - initial[name]).max() > 0
    # From the last epoch on the large layer is rounded, and still learns.
    before = run.weights()["fc1.weight"]
    losses.append(run.epoch(3, pixels, labels))
    after = run.weights()["fc1.weight"]
    assert run.rounded
    assert losses[2] < losses[1]
    np.testing.assert_array_equal(dequantise(*quantise(after), after.shape), after)
    assert not np.array_equal(dequantise(*quantise(before), before.shape), after)


def test_what_is_stored_is_what_was_learned(torch):
    lines = []
    trained = train_network(
        NETWORK, data="synthetic", images=1500, epochs=2, device="cpu", progress=lines.append
    )
    network = find(NETWORK)
    stored = unpack_weights(network, trained.content, "file")
    assert stored.made["test_accuracy"] == trained.test_accuracy
    command = f"convswap train {NETWORK} --data synthetic --images 1500 --epochs 2"
    assert stored.made["command"] == command
    # A few steps suffice to distinguish the shapes of the synthetic set.
    assert trained.held_out_accuracy > 0.6
    assert trained.test_accuracy == pytest.approx(trained.held_out_accuracy, abs=0.15)
    data = datasets.load("synthetic")
    classes = onnx_run(build(network, stored.arrays, {}), data.images).argmax(axis=1)
    # Near ties, of two images at most, may be decided either way.
    assert np.mean(classes == data.labels) == pytest.approx(trained.test_accuracy, abs=1.01e-3)
    assert [number for number in (1, 2, 3) if any(f"epoch {number} of 2" in line for line in lines)] == [1, 2]
    assert any("of 150 held out" in line for line in lines)


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not(torch):
    from convswap.export.training import train

    data = datasets.load("synthetic", split="train", images=200)

    def content(seed):
        recipe = Recipe(epochs=1, batch=60)
        weights, _ = train(find(NETWORK), data, recipe, seed=seed, device="cpu", progress=lambda text: None)
        return pack_weights(find(NETWORK), weights, {})

    assert content(3) == content(3) != content(4)


def test_held_out_images_are_not_learned_from(torch):
    from convswap.export.training import train

    network = find(NETWORK)
    data = datasets.load("synthetic", split="train", images=200)
    changed = dataclasses.replace(data, images=data.images.copy(), labels=data.labels.copy())
    changed.images[180:] = 0
    changed.labels[180:] = 0
    recipe = Recipe(epochs=1, batch=60)
    (first, _), (second, _) = (
        train(network, each, recipe, seed=0, device="cpu", progress=lambda text: None)
        for each in (data, changed)
    )
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_the_weak_network_learns_from_few_images():
    assert recipe_for(find("ece408-2017-low")).training_images < 100
    for name in set(NETWORKS) - {"ece408-2017-low"}:
        assert recipe_for(find(name)).training_images is None


def test_every_tensor_of_a_training_is_on_the_device(torch):
    """Run a whole training on PyTorch's meta device, whose tensors do not mix with those of other devices."""
    from convswap.export.training import accuracy, train
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    aten = torch.ops.aten
    operations = set()

    class OneDevice(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            on_device = [tensor for tensor in tensors if tensor.device.type == "meta"]
            if operator is aten._local_scalar_dense.default and on_device:
                return 0
            if (
                operator is aten._to_copy.default
                and on_device
                and kwargs.get("device") == torch.device("cpu")
            ):
                return torch.zeros(args[0].shape, dtype=args[0].dtype)
            # As on a card, scalars may be on the CPU, and copies go from one device to the other.
            mixed = {each.device.type for each in tensors if each.dim() > 0 or each.device.type == "meta"}
            if operator not in (aten.copy_.default, aten._to_copy.default):
                assert len(mixed) <= 1, f"{operator} got tensors on {mixed}"
            operations.update((operator, tensor.device.type) for tensor in on_device)
            return operator(*args, **(kwargs or {}))

    # All kinds of layers, and large enough for one in 4 bits.
    network = dataclasses.replace(find("ece408-2020"), image_size=200)
    assert four_bit_parameters(network) == ["fc1.weight"]
    data = datasets.load("synthetic", split="train", images=20, image_size=200)
    with OneDevice():
        train(network, data, Recipe(epochs=2, batch=8), seed=0, device="meta", progress=lambda text: None)
        accuracy(network, seeded_weights(network), data, "meta")
    assert (aten.convolution_backward.default, "meta") in operations


@pytest.mark.gpu
def test_a_network_learns_on_the_card(torch):
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no card")
    first, second = (
        train_network(NETWORK, data="synthetic", images=1500, epochs=2, device="cuda") for _ in range(2)
    )
    assert first.content == second.content
    assert first.test_accuracy > 0.6
    arrays = unpack_weights(find(NETWORK), first.content, "file").arrays
    data = datasets.load("synthetic")
    classes = onnx_run(build(find(NETWORK), arrays, {}), data.images).argmax(axis=1)
    assert np.mean(classes == data.labels) == pytest.approx(first.test_accuracy, abs=3e-4)


def test_the_command_writes_weights_that_export_takes(torch, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--data", "synthetic", "--images", "300", "--epochs", "1", "--device", "cpu"]
    assert main(["train", NETWORK, *arguments]) == 0
    out, err = capsys.readouterr()
    name = f"{NETWORK}.trained.npz"
    assert out.startswith(f"{name}: ") and "of the test images" in out
    assert "epoch 1 of 1" in err
    assert [entry.name for entry in tmp_path.iterdir()] == [name]

    assert main(["export", NETWORK, "--weights", name]) == 0
    model = onnx.load(tmp_path / f"{NETWORK}.onnx")
    images = datasets.load("synthetic", images=3).images
    again = export_network(NETWORK, weights=tmp_path / name)
    np.testing.assert_array_equal(onnx_run(model, images), onnx_run(again, images))
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties["convswap.dataset"] == "synthetic"
    assert f"convswap train {NETWORK} --data synthetic" in properties["convswap.weights"]
    stored = unpack_weights(find(NETWORK), (tmp_path / name).read_bytes(), name)
    initializers = {value.name: onnx.numpy_helper.to_array(value) for value in model.graph.initializer}
    assert set(initializers) == set(stored.arrays)
    for key, array in stored.arrays.items():
        np.testing.assert_array_equal(initializers[key], array)


def test_weights_that_cannot_be_used_are_refused(tmp_path, capsys):
    (tmp_path / "damaged.npz").write_bytes(b"nothing")
    for arguments, message in [
        ([NETWORK, "--weights", str(tmp_path / "none.npz")], "no such file"),
        ([NETWORK, "--weights", str(tmp_path)], "is a directory"),
        ([NETWORK, "--weights", str(tmp_path / "damaged.npz")], "does not hold the weights of"),
        ([NETWORK, "--weights", "w.npz", "--data", "synthetic"], "--data was given with --weights"),
        (["--torch", "a:b", "--weights", "w.npz"], "--weights was given with --torch"),
    ]:
        assert main(["export", *arguments, "-o", str(tmp_path / "out.onnx")]) == 2
        # Progress lines may come before the message.
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert message in line
    assert not (tmp_path / "out.onnx").exists()


def test_without_pytorch_one_line_says_what_to_install(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    imported = builtins.__import__

    def without_torch(name, *arguments, **options):
        if name.split(".")[0] == "torch":
            raise ImportError("No module named 'torch'")
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    line = refusal(capsys, "train", NETWORK)
    assert "PyTorch, which is not installed: in convswap's folder, pip install '.[train]'" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ece408-2017"], "unknown network 'ece408-2017'; did you mean"),
        ([NETWORK, "--epochs", "0"], "--epochs 0: expected 1 or more"),
        ([NETWORK, "--seed", "-1"], "--seed -1 is out of range"),
        ([NETWORK, "--device", "gpu"], "unknown device 'gpu'"),
        ([NETWORK, "--data", "synthetc"], "did you mean 'synthetic'"),
        ([NETWORK, "--data", "synthetic", "--images", "0"], "0 images were asked for"),
        ([NETWORK, "--data", "synthetic", "--images", "1"], "two labelled images or more"),
        ([NETWORK, "-o", "missing/file.npz"], "there is no folder 'missing'"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(torch, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refusal(capsys, "train", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_card_that_is_not_there_is_refused(torch, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cuda cannot be used: this PyTorch" in refusal(
        capsys, "train", NETWORK, "--device", "cuda"
    )


def test_missing_test_images_are_found_out_before_the_training(torch, monkeypatch):
    from convswap.export import training

    load = datasets.load

    def only_training_images(name, split="test", **options):
        if split == "test":
            raise ConvswapError("no test images")
        return load(name, split=split, **options)

    monkeypatch.setattr(datasets, "load", only_training_images)
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ConvswapError, match="no test images"):
        train_network(NETWORK, data="synthetic", images=20, device="cpu")


def test_a_full_device_is_one_line(torch, monkeypatch, capsys):
    from convswap.export import training

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB.")

    monkeypatch.setattr(training.TrainingRun, "epoch", full)
    line = refusal(capsys, "train", NETWORK, "--data", "synthetic", "--images", "20", "--device", "cpu")
    assert "the memory of device cpu is too small" in line


def test_a_training_that_diverges_is_one_line(torch, monkeypatch, capsys):
    from convswap.export import training

    monkeypatch.setattr(training.TrainingRun, "epoch", lambda *_: float("nan"))
    line = refusal(capsys, "train", NETWORK, "--data", "synthetic", "--images", "20", "--device", "cpu")
    assert "diverged in epoch 1: try another --seed" in line


def test_only_the_courses_networks_are_trained() -> None:
    with pytest.raises(ConvswapError, match="resnet50 is not one of the course's networks"):
        train_network("resnet50")
