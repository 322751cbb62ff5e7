"""Random models whose tensors can be NHWC in parts, and random costs that choose these parts."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
from convswap.graph.layout.costs import NodeLayouts
from onnx import TensorProto, helper, numpy_helper

OPSETS = (11, 12, 13, 17, 18, 19)
# Extents of the spatial axes; all differ from the numbers of channels, so that swapped axes show.
_SIZES = {3: (11,), 4: (9, 7), 5: (3, 5, 4)}
_CHANNELS = (8, 16, 6, 12)


class RandomCosts:
    """Costs that are drawn for each question, so that any set of values may become NHWC."""

    def __init__(self, seed: int, nhwc: float) -> None:
        self._seed, self._nhwc = seed, nhwc

    def conv(self, node: ir.Node, layouts: NodeLayouts) -> float:
        key = random.Random(f"{self._seed} {node.name} {node.outputs[0].name} {layouts}")
        return key.random() + self._nhwc * (3 - sum(layouts))

    def transpose(self, value: ir.Value) -> float:
        return random.Random(f"{value.name}").random() * 0.1


class RandomLayoutModel:
    """A model of float32 with one data input, of random opset, rank and nodes; the batch may be open."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.opset = self._random.choice(OPSETS)
        self.rank = self._random.choice((4, 4, 4, 4, 3, 5))
        self.dtype = self._random.choice((np.float32, np.float32, np.float16))
        self.batch = self._random.choice(("n", 2))
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._values: list[tuple[str, tuple[int, ...]]] = []  # names and shapes without the batch
        self._numbers = np.random.default_rng(seed)
        self.sample = (3, *_SIZES[self.rank])
        self._values.append(("x", self.sample))
        self._conv()
        for _ in range(self._random.randint(4, 14)):
            self._random.choice(self._steps())()
        self.model = self._finish()

    def feeds(self, batch: int) -> dict[str, np.ndarray]:
        return {"x": self._numbers.standard_normal((batch, *self.sample)).astype(self.dtype)}

    def _steps(self):
        steps = [
            self._conv, self._conv, self._conv, self._conv, self._unary, self._unary, self._add, self._add,
            self._constant_operand, self._concat, self._split, self._slice, self._pad, self._reduce,
            self._softmax, self._gate, self._transposes, self._shape, self._global_pool, self._unknown,
            self._flat_positions, self._normalise, self._layer_norm,
        ]  # fmt: skip
        if self.rank == 4:
            steps += [self._pool, self._pool, self._pools, self._resize, self._subgraph, self._matrix]
        return steps

    def _finish(self) -> onnx.ModelProto:
        read = {name for node in self._nodes for name in node.input}
        last = self._values[-1][0]
        # What nothing reads is an output, and now and then something that is read.
        outputs = [
            (name, shape)
            for name, shape in self._values[1:]
            if name not in read or name == last or self._random.random() < 0.1
        ]
        batch = self.batch
        graph = helper.make_graph(
            self._nodes,
            "random",
            [helper.make_tensor_value_info("x", self._onnx_type, [batch, *self.sample])],
            [
                helper.make_tensor_value_info(name, self._onnx_type, [batch, *shape])
                for name, shape in outputs
            ],
            self._initializers,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        if self._random.random() < 0.5:
            model = onnx.shape_inference.infer_shapes(model)
        return model

    @property
    def _onnx_type(self) -> int:
        return TensorProto.FLOAT if self.dtype is np.float32 else TensorProto.FLOAT16

    def _node(
        self, op: str, inputs: list[str], shape: tuple[int, ...], outputs: int = 1, **attributes
    ) -> str:
        names = [f"{op.lower()}{len(self._nodes)}_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(op, inputs, names, name=f"{op}{len(self._nodes)}", **attributes))
        self._values += [(name, shape) for name in names]
        return names[0]

    def _tensor(self, array) -> str:
        name = f"constant{len(self._initializers)}_{len(self._nodes)}"
        array = np.asarray(array)
        if array.dtype == np.float64:
            array = array.astype(self.dtype)
        tensor = numpy_helper.from_array(array, name)
        if self._random.random() < 0.2:
            self._nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self._initializers.append(tensor)
        return name

    def _any(self) -> tuple[str, tuple[int, ...]]:
        recent = self._values[1:] or self._values
        return self._random.choice(recent[-4:] if self._random.random() < 0.7 else recent)

    def _same(self, test) -> tuple[str, tuple[int, ...]] | None:
        candidates = [value for value in self._values[1:] if test(value[1])]
        return self._random.choice(candidates) if candidates else None

    def _conv(self) -> None:
        name, shape = self._any()
        channels, spatial = shape[0], shape[1:]
        kernel = [self._random.choice([size for size in (1, 3) if size <= extent]) for extent in spatial]
        strides = [self._random.choice((1, 1, 1, 2)) for _ in spatial]
        kind = self._random.choice(("dense", "dense", "dense", "grouped", "depthwise"))
        group = channels if kind == "depthwise" else 2 if kind == "grouped" and channels % 2 == 0 else 1
        filters = channels if kind == "depthwise" else self._random.choice(_CHANNELS)
        pads = [size // 2 for size in kernel] * 2
        scale = 1 / np.sqrt(channels // group * np.prod(kernel))
        weights = scale * self._numbers.standard_normal((filters, channels // group, *kernel))
        inputs = [name, self._tensor(weights)]
        if self._random.random() < 0.5:
            inputs.append(self._tensor(self._numbers.standard_normal(filters)))
        result = [(extent + 2 * (size // 2) - size) // stride + 1
                  for extent, size, stride in zip(spatial, kernel, strides, strict=True)]  # fmt: skip
        self._node(
            "Conv", inputs, (filters, *result), kernel_shape=kernel, strides=strides, pads=pads, group=group
        )

    def _unary(self) -> None:
        name, shape = self._any()
        op = self._random.choice(
            ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "Identity", "HardSigmoid", "PRelu")
        )
        inputs = [name]
        if op == "Clip":
            inputs += [self._tensor(self.dtype(-0.5)), self._tensor(self.dtype(0.5))]
        if op == "PRelu":
            inputs.append(self._tensor(self._numbers.random((shape[0], *[1] * (len(shape) - 1)))))
        self._node(op, inputs, shape)

    def _add(self) -> None:
        name, shape = self._any()
        other = self._same(lambda candidate: candidate == shape)
        self._node(self._random.choice(("Add", "Mul", "Sub", "Max")), [name, other[0]], shape)

    def _constant_operand(self) -> None:
        name, shape = self._any()
        operand = self._random.choice((
            (), (1,), (shape[0], *[1] * (len(shape) - 1)), (1, shape[0], *[1] * (len(shape) - 1)), shape,
            shape[-1:],
        ))  # fmt: skip
        inputs = [name, self._tensor(self._numbers.standard_normal(operand))]
        if self._random.random() < 0.3:
            inputs.reverse()
        self._node(self._random.choice(("Add", "Mul", "Sub")), inputs, shape)

    def _concat(self) -> None:
        name, shape = self._any()
        other = self._same(lambda candidate: candidate[1:] == shape[1:])
        inputs, channels = [name, other[0]], shape[0] + other[1][0]
        if self._random.random() < 0.2 and self.batch == 2:
            inputs[1], channels = self._tensor(self._numbers.random((2, 3, *shape[1:]))), shape[0] + 3
        axis = self._random.choice((1, -len(shape)))
        self._node("Concat", inputs, (channels, *shape[1:]), axis=axis)

    def _split(self) -> None:
        name, shape = self._any()
        if shape[0] % 2:
            return
        half = (shape[0] // 2, *shape[1:])
        options = {"num_outputs": 2} if self.opset >= 18 else {}
        self._node("Split", [name], half, outputs=2, axis=self._random.choice((1, -len(shape))), **options)

    def _slice(self) -> None:
        name, shape = self._any()
        axis = self._random.randrange(len(shape))
        if shape[axis] < 3:
            return
        given = self._random.choice((axis + 1, axis - len(shape)))
        kind = self._random.choice((np.int64, np.int32))
        inputs = [name, *(self._tensor(np.array([number], kind)) for number in (1, shape[axis], given))]
        self._node("Slice", inputs, (*shape[:axis], shape[axis] - 1, *shape[axis + 1 :]))

    def _pad(self) -> None:
        name, shape = self._any()
        axis = self._random.randrange(len(shape))
        pads = np.zeros((2, len(shape) + 1), np.int64)
        pads[:, axis + 1] = 1, 2
        result = (*shape[:axis], shape[axis] + 3, *shape[axis + 1 :])
        if self.opset >= 18 and self._random.random() < 0.5:
            inputs = [name, self._tensor(np.array([1, 2])), "", self._tensor(np.array([axis + 1]))]
        else:
            inputs = [name, self._tensor(pads.reshape(-1)), self._tensor(self.dtype(0.5))]
        self._node("Pad", inputs, result)

    def _reduce(self) -> None:
        name, shape = self._any()
        op = self._random.choice(("ReduceMean", "ReduceMax", "ReduceSum"))
        axes = self._random.choice(([1], list(range(2, len(shape) + 1)), [-1], [2], [1, len(shape)]))
        places = [axis % (len(shape) + 1) for axis in axes]
        result = tuple(1 if place + 1 in places else extent for place, extent in enumerate(shape))
        if self.opset >= (13 if op == "ReduceSum" else 18):
            reduced = self._node(op, [name, self._tensor(np.array(axes))], result, keepdims=1)
        else:
            reduced = self._node(op, [name], result, keepdims=1, axes=axes)
        self._node("Add", [name, reduced], shape)

    def _normalise(self) -> None:
        """A BatchNormalization, now and then behind no Conv, and with an activation after it."""
        name, shape = self._any()
        numbers = [*self._numbers.standard_normal((3, shape[0])), self._numbers.uniform(0.5, 2.0, shape[0])]
        normalised = self._node("BatchNormalization", [name, *map(self._tensor, numbers)], shape)
        if self._random.random() < 0.5:
            self._node("Relu", [normalised], shape)

    def _layer_norm(self) -> None:
        """A LayerNormalization of the channels between Transposes, as in ConvNeXt."""
        if self.opset >= 17:
            self._in_nhwc("LayerNormalization", self._numbers.standard_normal, parameters=2)

    def _softmax(self) -> None:
        name, shape = self._any()
        if self.opset >= 13:
            self._node("Softmax", [name], shape, axis=self._random.choice((1, -1, 2)))

    def _gate(self) -> None:
        """Squeeze and excitation."""
        name, shape = self._any()
        ones = [1] * (len(shape) - 1)
        pooled = self._node("GlobalAveragePool", [name], (shape[0], *ones))
        weights = self._numbers.standard_normal((shape[0], shape[0], *ones)) / shape[0]
        gate = self._node("Conv", [pooled, self._tensor(weights)], (shape[0], *ones))
        self._node("Mul", [name, self._node("Sigmoid", [gate], (shape[0], *ones))], shape)

    def _transposes(self) -> None:
        """An operator between Transposes, as in models that were channels last."""
        self._in_nhwc("Mul", self._numbers.random, parameters=1)

    def _in_nhwc(self, op: str, draw: Callable[[int], np.ndarray], *, parameters: int) -> None:
        """Add an operator with drawn parameters for each channel between Transposes to NHWC and back."""
        name, shape = self._any()
        rank = len(shape) + 1
        last = (*shape[1:], shape[0])
        changed = self._node("Transpose", [name], last, perm=[0, *range(2, rank), 1])
        tensors = [self._tensor(draw(shape[0])) for _ in range(parameters)]
        inner = self._node(op, [changed, *tensors], last)
        # The values between have another order of axes, which the other steps do not expect.
        self._values = [value for value in self._values if value[0] not in (changed, inner)]
        self._node("Transpose", [inner], shape, perm=[0, rank - 1, *range(1, rank - 1)])

    def _shape(self) -> None:
        """Reshape to a shape that is computed, as exporters write it."""
        name, shape = self._any()
        extents = self._node("Shape", [name], shape)
        self._values.pop()
        self._node("Reshape", [name, extents], shape)

    def _flat_positions(self) -> None:
        """Reshape to one spatial axis and back, with an operator between."""
        name, shape = self._any()
        flat = (shape[0], int(np.prod(shape[1:])))
        batch = self._random.choice((0, -1)) if self.batch == "n" else self._random.choice((0, -1, 2))
        target = [batch, shape[0], flat[1]] if batch != 0 else [0, self._random.choice((0, shape[0])), -1]
        first = self._node("Reshape", [name, self._tensor(np.array(target))], flat)
        second = self._node("Softmax", [first], flat, axis=-1) if self.opset >= 13 else first
        self._node("Reshape", [second, self._tensor(np.array([0, shape[0], *shape[1:]]))], shape)
        self._values = [value for value in self._values if value[0] not in (first, second)]

    def _global_pool(self) -> None:
        name, shape = self._any()
        ones = [1] * (len(shape) - 1)
        pooled = self._node("GlobalMaxPool", [name], (shape[0], *ones))
        self._node("Add", [name, pooled], shape)

    def _unknown(self) -> None:
        name, shape = self._any()
        if self.rank == 4:
            self._node("LRN", [name], shape, size=3)
        elif self.dtype is np.float32:
            self._node("CumSum", [name, self._tensor(np.array(1))], shape)

    def _pool(self) -> None:
        """A pool of random attributes."""
        name, shape = self._any()
        kernel = [self._random.randint(1, min(5, extent)) for extent in shape[1:]]
        strides = [self._random.choice((1, 1, 2)) for _ in kernel]
        pads = (
            [self._random.randint(0, size - 1) for size in kernel * 2] if self._random.random() < 0.6 else []
        )
        options = {"strides": strides} | ({"pads": pads} if pads else {})
        op = self._random.choice(("MaxPool", "AveragePool"))
        if op == "AveragePool" and self._random.random() < 0.5:
            options["count_include_pad"] = 1
        begins, ends = (pads[:2], pads[2:]) if pads else ((0, 0), (0, 0))
        rooms = [sum(numbers) - size for *numbers, size in zip(shape[1:], begins, ends, kernel, strict=True)]
        result = [room // stride + 1 for room, stride in zip(rooms, strides, strict=True)]
        last_windows = zip(rooms, strides, result, shape[1:], begins, strict=True)
        # ONNX's shape inference counts a last window that begins behind the image, and ONNX Runtime does not.
        is_clear = all(room % stride == 0 or count * stride < extent + begin
                       for room, stride, count, extent, begin in last_windows)  # fmt: skip
        if is_clear and self._random.random() < 0.4:
            options["ceil_mode"] = 1
            result = [-(-room // stride) + 1 for room, stride in zip(rooms, strides, strict=True)]
        self._node(op, [name], (shape[0], *result), kernel_shape=kernel, **options)

    def _pools(self) -> None:
        """Three pools in a row and their Concat, as in YOLO."""
        name, shape = self._any()
        if shape[0] > 16:
            return
        values = [name]
        for _ in range(3):
            values.append(
                self._node(
                    "MaxPool", values[-1:], shape, kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]
                )
            )
        self._node("Concat", values, (4 * shape[0], *shape[1:]), axis=1)

    def _resize(self) -> None:
        name, shape = self._any()
        scales, options = np.array([1, 1, 2, 3], np.float32), {}
        if self.opset >= 18 and self._random.random() < 0.5:
            scales, options = scales[2:], {"axes": [2, -1]}
        mode = self._random.choice(("nearest", "nearest", "linear"))
        result = (shape[0], 2 * shape[1], 3 * shape[2])
        if np.prod(result) < 20000:
            region = "" if self.opset >= 13 else self._tensor(np.zeros(0, np.float32))
            self._node("Resize", [name, region, self._tensor(scales)], result, mode=mode,
                       coordinate_transformation_mode="asymmetric", **options)  # fmt: skip

    def _matrix(self) -> None:
        """A matrix of images and channels between a global pooling and a multiplication."""
        name, shape = self._any()
        pooled = self._node("GlobalAveragePool", [name], (shape[0], 1, 1))
        op = self._random.choice(("Flatten", "Reshape", "Squeeze"))
        inputs = [pooled]
        axes_are_input = self.opset >= 13
        options = {}
        if op == "Reshape":
            inputs.append(self._tensor(np.array([0, -1])))
        if op == "Squeeze":
            inputs += [self._tensor(np.array([2, 3]))] if axes_are_input else []
            options = {} if axes_are_input else {"axes": [2, 3]}
        matrix = self._node(op, inputs, (shape[0],), **options)
        weights = self._numbers.standard_normal((shape[0], shape[0])) / shape[0]
        product = self._node("MatMul", [matrix, self._tensor(weights)], (shape[0],))
        if self._random.random() < 0.5:
            back = self._node(
                "Reshape", [product, self._tensor(np.array([-1, shape[0], 1, 1]))], (shape[0], 1, 1)
            )
        elif axes_are_input:
            back = self._node("Unsqueeze", [product, self._tensor(np.array([2, 3]))], (shape[0], 1, 1))
        else:
            back = self._node("Unsqueeze", [product], (shape[0], 1, 1), axes=[2, 3])
        self._values = [value for value in self._values if value[0] not in (matrix, product)]
        self._node("Mul", [name, back], shape)

    def _subgraph(self) -> None:
        """An If whose branches read a value of the graph around them; one has a Conv."""
        name, shape = self._any()
        mark = len(self._nodes)
        condition = f"condition{mark}"
        self._initializers.append(
            numpy_helper.from_array(np.array(self._random.random() < 0.5), f"{condition}_c")
        )
        self._nodes.append(helper.make_node("Identity", [f"{condition}_c"], [condition]))
        weights = self._tensor(self._numbers.standard_normal((shape[0], shape[0], 1, 1)) / shape[0])
        branches = []
        for label, ops in (("then", ["Conv", "Relu", "Conv"]), ("else", ["Neg"])):
            value, nodes = name, []
            for index, op in enumerate(ops):
                result = f"{label}{mark}_{index}"
                inputs = [value, weights] if op == "Conv" else [value]
                nodes.append(helper.make_node(op, inputs, [result], name=f"{label}{mark}{index}"))
                value = result
            output = helper.make_tensor_value_info(value, self._onnx_type, None)
            branches.append(helper.make_graph(nodes, label, [], [output]))
        self._node("If", [condition], shape, then_branch=branches[0], else_branch=branches[1])
