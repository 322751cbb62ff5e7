"""Kernels that start early (PDL) read what earlier kernels wrote, and do not overwrite it too soon."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime
import pytest
from bound_model import BoundModel
from build_tools import REPOSITORY
from card_algorithms import first_on_card
from card_calls import reference_of
from convswap import _native
from every_conv import same_bits
from onnx import helper
from op_sessions import PROVIDERS, graph_model, make_session
from repeats import repeats

CHANNELS, LAYERS, RUNS = 4, repeats(12, minimum=4), repeats(100, minimum=4)
SIZES = {"small": (1, 9, 11), "large": (repeats(300), 40, 43)}
# No epilogue, an activation, and a pool with overlapping windows. Some algorithms compute the latter two in a
# second kernel, others in the first.
EPILOGUES = {
    "Conv": {},
    "Relu": {"activation": "Relu"},
    "MaxPool": {"pool": "MaxPool", "pool_kernel_shape": [3, 3], "pool_pads": [1] * 4},
}
# A kernel in the sources, with its body.
ENTRY = r"__global__.*?\{\n(.*?)\n\}"
ALGORITHMS = [each.name for each in _native.catalog() if each.device == "cuda" and not each.by_name_alone]


def taps_of(algorithm: str) -> int:
    """Return the height and width of the filters that an algorithm supports."""
    return 1 if algorithm == "pointwise" else 3


def weights(layer: int, taps: int) -> np.ndarray:
    """Return weights that keep the magnitude of the values through a chain."""
    random = np.random.default_rng(layer)
    w = random.normal(size=(CHANNELS, CHANNELS, taps, taps)) / np.sqrt(taps**2 * CHANNELS)
    return w.astype(np.float32)


def chain(layers: range, algorithm: str, epilogue: dict) -> bytes:
    """Return a model of `layers` convolutions in a chain."""
    taps = taps_of(algorithm)
    values = ["x", *(f"y{layer}" for layer in layers[:-1]), "y"]
    nodes = [
        helper.make_node(
            "FusedConv" if epilogue else "Conv",
            [values[i], f"w{layer}", *(["b"] if epilogue else [])],
            [values[i + 1]],
            domain="convswap",
            algorithm=algorithm,
            pads=[taps // 2] * 4,
            **epilogue,
        )
        for i, layer in enumerate(layers)
    ]
    constants = {f"w{layer}": weights(layer, taps) for layer in layers}
    if epilogue:
        constants["b"] = np.full(CHANNELS, 0.1, np.float32)
    return graph_model(nodes, {"x": [None, CHANNELS, None, None]}, constants).SerializeToString()


def random_input(seed: int, size: str) -> np.ndarray:
    batch, height, width = SIZES[size]
    return np.random.default_rng(seed).normal(size=(batch, CHANNELS, height, width)).astype(np.float32)


def expected_outputs(
    inputs: list[np.ndarray], algorithm: str, epilogue: dict, device: str
) -> list[np.ndarray]:
    """Return the chain's output for each input, computed by one session per convolution."""
    taps = taps_of(algorithm)
    problem = _native.Problem((2, CHANNELS, 9, 9), (CHANNELS, CHANNELS, taps, taps), pads=[taps // 2] * 4)
    if reason := _native.why_not(problem, algorithm, device):
        pytest.skip(reason)
    values = list(inputs)
    for layer in range(LAYERS):
        session = make_session(chain(range(layer, layer + 1), algorithm, epilogue), device)
        values = [session.run(None, {"x": x})[0] for x in values]
    assert not same_bits([values[0]], [values[1]])
    return values


def run_without_waiting(
    session: onnxruntime.InferenceSession, feeds: list[dict[str, onnxruntime.OrtValue]], device: str
) -> list[onnxruntime.IOBinding]:
    """Enqueue a run for each element of `feeds`; return the bindings with the outputs."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    bindings = []
    for values in feeds:
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y", device, 0)
        bindings.append(binding)
    for binding in bindings:
        session.run_with_iobinding(binding, options)
    return bindings


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_convolution_of_a_chain_reads_what_the_one_before_it_wrote(algorithm, epilogue, size, cuda):
    """Many runs with two alternating inputs and no wait: a value read too early belongs to another input.

    The convolutions of the chain reuse each other's output memory.
    """
    inputs = [random_input(seed, size) for seed in (0, 1)]
    expected = expected_outputs(inputs, algorithm, EPILOGUES[epilogue], cuda)
    session = make_session(chain(range(LAYERS), algorithm, EPILOGUES[epilogue]), cuda)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(x, cuda, 0) for x in inputs]
    bindings = run_without_waiting(session, [{"x": values[number % 2]} for number in range(RUNS)], cuda)
    for number, binding in enumerate(bindings):
        binding.synchronize_outputs()
        assert same_bits(binding.copy_outputs_to_cpu(), [expected[number % 2]]), f"run {number}"
    assert session.get_providers()[0] == PROVIDERS[cuda]


@pytest.mark.gpu
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_convolution_of_a_chain_in_a_graph_reads_what_the_one_before_it_wrote(algorithm, epilogue, cuda):
    inputs = [random_input(seed, "small") for seed in (0, 1)]
    expected = expected_outputs(inputs, algorithm, EPILOGUES[epilogue], cuda)
    model = chain(range(LAYERS), algorithm, EPILOGUES[epilogue])
    session = make_session(model, cuda, provider_options={"enable_cuda_graph": "1"})
    bound = BoundModel(session, inputs[0], [expected[0]])
    for number in range(RUNS):
        bound.x.update_inplace(inputs[number % 2])
        assert same_bits(bound.run(), [expected[number % 2]]), f"run {number}"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "algorithm", ["pointwise", "sliced_k", "many_channels", "depthwise", "sliding_rows", "in front"]
)
def test_weights_that_the_node_before_writes_are_waited_for(algorithm, cuda):
    """Constant weights are read early or prepared once. Here the previous node writes the weights."""
    filters, depth, writer = 96, 16, first_on_card("sliced_k", "tiled")
    is_depthwise = algorithm in ("depthwise", "sliding_rows", "in front")
    w_shape = (filters, 1, 3, 3) if is_depthwise else (filters, filters, 1, 1)
    count = int(np.prod(w_shape[1:]))
    attributes = {"group": filters, "pads": [1] * 4} if is_depthwise else {}
    nodes = [
        helper.make_node("Conv", ["a", "v"], ["made"], domain="convswap", algorithm=writer),
        helper.make_node("Reshape", ["made", "w_shape"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"], domain="convswap", algorithm=algorithm, **attributes),
    ]
    identity = np.eye(filters, dtype=np.float32).reshape(filters, filters, 1, 1)
    if algorithm == "in front":
        names, pads = ["x", "identity", "", "", "w"], attributes["pads"]
        nodes[-1] = helper.make_node("FusedConv", names, ["y"], domain="convswap", depthwise_pads=pads)
    random = np.random.default_rng(0)
    a = [random.normal(size=(filters, depth, 1, 1)).astype(np.float32) for _ in range(2)]
    v = random.normal(size=(count, depth, 1, 1)).astype(np.float32)
    x = random.normal(size=(1, filters, 8, 8)).astype(np.float32)
    constants = {"v": v, "w_shape": np.array(w_shape), "identity": identity}
    model = graph_model(nodes, {"a": a[0].shape, "x": x.shape}, constants)
    session = make_session(model.SerializeToString(), cuda)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(each, cuda, 0) for each in a]
    on_card = onnxruntime.OrtValue.ortvalue_from_numpy(x, cuda, 0)
    feeds = [{"a": values[number % 2], "x": on_card} for number in range(RUNS)]
    bindings = run_without_waiting(session, feeds, cuda)
    weights_of_runs = [
        (each.reshape(filters, depth) @ v.reshape(count, depth).T).reshape(w_shape) for each in a
    ]
    expected = [reference_of(x, w, None, attributes) for w in weights_of_runs]
    for number, binding in enumerate(bindings):
        binding.synchronize_outputs()
        (actual,) = binding.copy_outputs_to_cpu()
        # Weights of the other input would give an error of 12 or 40; TF32 gives 0.1 at most.
        np.testing.assert_allclose(actual, expected[number % 2], atol=1, err_msg=f"run {number}")


@pytest.mark.parametrize("file", ["kernel.cuh", "mma_kernel.cuh"])
def test_many_channels_makes_its_barriers_before_it_waits_and_nothing_else(file: str):
    """The largest kernels initialise mbarriers before they wait: shared memory is private to a block."""
    path = REPOSITORY / "custom_op" / "cuda" / "many_channels" / file
    (entry,) = (
        each[1]
        for each in re.finditer(ENTRY, path.read_text(encoding="utf-8"), re.DOTALL)
        if "consume_tiles<" in each[1]
    )
    before, _, after = entry.partition("griddepcontrol_wait();")
    assert "produce_tiles<" in after and "consume_tiles<" in after
    assert "init_barriers<" in before and not re.search(r"problem\.\w+", before)
    assert not re.search(r"load\(|copy|prefetch|return", before)
    # The producers wait themselves. Before that they copy only constant weights.
    text = path.with_name("producers.cuh").read_text(encoding="utf-8")
    before, _, after = text.partition("griddepcontrol_wait();")
    before = before[before.rindex("produce_tiles(") :]
    assert "load_pixels<" in after and "publish_tile_info<" in after
    assert re.findall(r"load_\w+|publish\w+|copy\w*\(", before) == ["load_weights"]
    assert before.index("problem.weights_are_constant") < before.index("load_weights")


def test_every_kernel_that_may_start_early_waits_first():
    """All kernels wait first, except many_channels; the ladder's and the lab's never start early."""
    cuda = REPOSITORY / "custom_op" / "cuda"
    kernels = 0
    for path in sorted(path for path in cuda.rglob("*") if path.suffix in (".cc", ".cuh", ".h")):
        text = path.read_text(encoding="utf-8")
        if {"ladder", "lab"} & set(path.parts):
            assert not re.search(r"earliest_start|Start::early", text), path
            continue
        for entry in re.finditer(ENTRY, text, re.DOTALL):
            kernels += 1
            if "consume_tiles<" in entry[1]:
                continue
            before, _, _ = entry[1].partition("griddepcontrol_wait();")
            assert before != entry[1], f"{path}: a kernel does not wait"
            # Constant weights are read before the wait.
            before, _, weights_code = before.partition("griddepcontrol_wait_unless(")
            assert not weights_code or re.search(
                r"filters?\b[.(]|filters?\(|filter_loader\.", weights_code
            ), weights_code
            assert not re.search(r"pixels\.|(?<!filter_)loader|slots|[Ss]tore|\.[xyzb]\b", weights_code), (
                weights_code
            )
            # Code before the wait depends only on the kernel's arguments and the thread's indices, and has no
            # branches.
            before = re.sub(r"^ *#.*$", "", before.replace("shared[]", ""), flags=re.MULTILINE)
            assert not re.search(r"\[|\*\w+ =|->|stage|\bload|prefetch", before), before
            assert not re.search(r"\b(if|for|while|return)\b", before), before
    assert kernels >= 6
