"""PyTorch modules become ONNX models that compute the same for any batch, through PyTorch's exporter."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.export import export_torch
from convswap.export.torch_module import SEED
from convswap.graph.swap import swap
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, make_session, run
from op_sessions import onnx_outputs

pytestmark = [pytest.mark.slow, pytest.mark.extended]

MODULES = '''
import sys

import torch
from torch import nn

print("printed while it is imported")


class Small(nn.Module):
    """Convolutions with and without a bias, groups, normalisation, dropout and a fully connected layer."""

    def __init__(self, classes=10):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, stride=2, groups=4)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, classes)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        return self.last(self.drop(self.second(x).mean((2, 3))))


class Flat(nn.Module):
    """Takes 28x28 pixels only."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5)
        self.last = nn.Linear(4 * 24 * 24, 10)

    def forward(self, x):
        return self.last(self.conv(x).flatten(1))


class TwoOutputs(Small):
    def forward(self, x):
        return super().forward(x), self.first(x)


class OneBatch(Small):
    def forward(self, x):
        return super().forward(x) + torch.zeros(2, 10)


class Branching(Small):
    def forward(self, x):
        if x.sum() > 1e9:
            x = x + 1
        return super().forward(x)


def small():
    return Small()


def fails():
    raise ValueError("no such\\nconfiguration")


def leaves():
    sys.exit("goodbye")


def needs_more(classes):
    return Small(classes)


made = Small(4)
double = Small().double()
line = nn.Conv1d(2, 3, 3)
number = 7


class Holder:
    inner = Small(3)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with the modules above in my_nets.py."""
    (tmp_path / "my_nets.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sys.modules.pop("my_nets", None)
    yield tmp_path
    sys.modules.pop("my_nets", None)


def images(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def onnx_run(model, x):
    return onnx_outputs(model, {"image": x})


def float64_run(torch, module, x):
    """Return the output of `module` for `x` in float64 and in evaluation mode."""
    with torch.no_grad():
        return module.double().eval()(torch.from_numpy(x.astype(np.float64))).numpy()


def message_of(*arguments):
    with pytest.raises(ConvswapError) as caught:
        export_torch(*arguments)
    message = str(caught.value)
    assert message.isprintable()
    return message


def test_a_class_becomes_a_model_that_computes_the_same_for_any_batch(torch, folder):
    model = export_torch("my_nets:Small", [3, 20, 16])
    torch.manual_seed(SEED)
    expected = float64_run(torch, sys.modules["my_nets"].Small(), x := images(5, 3, 20, 16))
    # float32 sums of at most 72 products of numbers near 1.
    (actual,) = onnx_run(model, x)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    np.testing.assert_allclose(onnx_run(model, x[:1])[0], expected[:1], atol=1e-5)
    swapping = swap(model)
    assert len(swapping.swapped) == 2
    session = make_session(ir.to_proto(swapping.model), CONVSWAP, Device("cpu", "asked for"))
    np.testing.assert_allclose(run(session, {"image": x})[0], expected, atol=1e-5)


def test_the_model_is_valid_named_shaped_and_readable_by_the_oldest_onnxruntime(torch, folder):
    model = export_torch("my_nets:small", [3, 20, 16])
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, [(opset.domain, opset.version) for opset in model.opset_import]) == (
        9,
        [("", 20)],
    )
    assert [_shape(value) for value in model.graph.input] == [("image", ["batch", 3, 20, 16])]
    assert [_shape(value) for value in model.graph.output] == [("output", ["batch", 10])]
    names = [node.name for node in model.graph.node]
    assert all(names) and len(set(names)) == len(names)
    shaped = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    assert {name for node in model.graph.node for name in node.output} <= shaped
    assert {entry.key: entry.value for entry in model.metadata_props} == {"convswap.network": "my_nets:small"}
    # The exporter notes the source file and line of every node.
    assert str(folder).encode() not in model.SerializeToString()


def _shape(value):
    dimensions = value.type.tensor_type.shape.dim
    return value.name, [dimension.dim_param or dimension.dim_value for dimension in dimensions]


def test_exporting_twice_gives_the_same_weights_and_leaves_the_random_numbers_alone(torch, folder):
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    first, second = (export_torch("my_nets:Small", [3, 8, 8]).graph.initializer for _ in range(2))
    assert len(first) > 4 and list(first) == list(second)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_modules_and_inner_names_are_found(torch, folder):
    for name, classes in (("made", 4), ("Holder.inner", 3)):
        model = export_torch(f"my_nets:{name}", [3, 8, 8])
        assert _shape(model.graph.output[0]) == ("output", ["batch", classes])


def test_the_first_convolution_determines_the_channels_of_the_default_size(torch, folder):
    model = export_torch("my_nets:Small")
    assert _shape(model.graph.input[0]) == ("image", ["batch", 3, 224, 224])


def test_the_input_has_the_element_type_of_the_parameters_and_any_rank(torch, folder):
    model = export_torch("my_nets:double", [3, 8, 8])
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    model = export_torch("my_nets:line", [2, 30])
    x = images(3, 2, 30)
    expected = float64_run(torch, sys.modules["my_nets"].line, x)
    np.testing.assert_allclose(onnx_run(model, x)[0], expected, atol=1e-5)


def test_several_outputs_stay_outputs(torch, folder):
    model = export_torch("my_nets:TwoOutputs", [3, 8, 8])
    assert [_shape(value)[1] for value in model.graph.output] == [["batch", 10], ["batch", 8, 8, 8]]


def test_the_command_writes_a_model_named_after_the_module_that_compare_takes(torch, folder, capsys):
    assert main(["export", "--torch", "my_nets:Small", "--input-shape", "3,12,12"]) == 0
    # Without the text that the module prints.
    assert capsys.readouterr().out == "Small.onnx\n"
    assert sorted(path.name for path in folder.iterdir()) == ["Small.onnx", "my_nets.py"]
    assert main(["compare", "Small.onnx", "--device", "cpu", "--images", "4", "--precision", "ieee"]) == 0
    assert "2 Conv swapped, 0 left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["my_nets:Smal"], "unknown name in my_nets: 'Smal'; did you mean 'Small'?"),
        (["my_nets:number"], "'my_nets:number' is a int; expected a torch.nn.Module"),
        (["my_nets:fails"], "cannot make 'my_nets:fails': ValueError: no such"),
        (["my_nets:leaves"], "cannot make 'my_nets:leaves': SystemExit: goodbye"),
        (["my_nets:needs_more"], "missing 1 required positional argument: 'classes'"),
        (["my_net:Small"], "cannot make 'my_net:Small': ModuleNotFoundError: No module named 'my_net'"),
        ([":Small"], "cannot make ':Small': ValueError: Empty module name"),
        (["my_nets:"], "unknown name in my_nets: ''"),
        (["my_nets:line"], "has no Conv2d that would tell what it takes; give the shape of one sample"),
        (["my_nets:Flat"], "cannot be run on samples of shape 1,224,224: RuntimeError"),
        (["my_nets:Flat", [1, 30, 30]], "give the shape of one sample with --input-shape"),
        (["my_nets:OneBatch", [3, 8, 8]], "'my_nets:OneBatch' runs on batches of one size only"),
        (["my_nets:Branching", [3, 8, 8]], "PyTorch cannot export 'my_nets:Branching'"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(torch, folder, capfd, arguments, expected):
    assert expected in message_of(*arguments)
    # A graph printed by PyTorch would hide the message.
    assert capfd.readouterr().err in ("", "printed while it is imported\n")
    assert sys.path[0] != str(folder)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--input-shape", "3,x"], "--input-shape '3,x': expected whole numbers with commas between"),
        (["--input-shape", "3,0,8"], "expected numbers from 1 on"),
        (["--image-size", "28"], "--image-size was given with --torch"),
        (["--data", "synthetic"], "--data was given with --torch"),
        (["ece408-2020"], "given: a network's name (see `convswap export --list`) and --torch"),
        (["-o", "nowhere/out.onnx"], "there is no folder 'nowhere'"),
    ],
)
def test_options_that_do_not_go_with_a_module_are_refused(folder, capsys, arguments, expected):
    assert main(["export", "--torch", "my_nets:Small", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["my_nets.py"]


def test_without_pytorch_one_line_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "in convswap's folder, pip install '.[torch]'" in message_of("my_nets:Small")


def test_without_torchvision_a_bare_name_is_refused(torch, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    message = message_of("resnet18")
    assert "'resnet18' is not of the form MODULE:NAME" in message and "pip install torchvision" in message


def test_a_bare_name_is_looked_for_among_torchvisions_models(torch, folder, monkeypatch):
    import importlib

    def get_model(name, weights):
        assert weights is None  # nothing is downloaded
        return importlib.import_module("my_nets").Small(6)

    models = types.ModuleType("torchvision.models")
    models.list_models = lambda module: ["resnet18", "resnet50"]
    models.get_model = get_model
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    model = export_torch("resnet50", [3, 8, 8])
    assert _shape(model.graph.output[0]) == ("output", ["batch", 6])
    assert "unknown torchvision model 'resnet19'; did you mean 'resnet18'?" in message_of("resnet19")


def test_a_network_of_torchvision_is_exported(torch, folder, capsys):
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")
    assert main(["export", "--torch", "mobilenet_v2", "--input-shape", "3,64,64"]) == 0
    torch.manual_seed(SEED)
    x = images(2, 3, 64, 64)
    expected = float64_run(torch, torchvision.models.mobilenet_v2(), x)
    actual = onnx_run(onnx.load(Path("mobilenet_v2.onnx")), x)[0]
    # 52 successive convolutions in float32.
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())
