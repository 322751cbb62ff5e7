"""Recognise the activations of `convswap.FusedConv`, as one node or decomposed into several.

Exporters decompose activations: Gelu becomes Div, Erf, Add and two Muls, for example. The nodes of such a
decomposition are expanded to a polynomial in the input x and one function f of x, such as 0.5 x + 0.5 x f
with f = erf(0.7071 x). With the same function f, all orders of the operations have the same polynomial. So
one comparison replaces a pattern for each order of operands; Gelu alone has hundreds of orders. Moreover,
onnxscript's patterns match constants of rank 0 only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants
from convswap.graph.epilogue import Activation, NotFusable, max_finite, read_float, read_text

# Ops that compute an activation of FusedConv. Each maps to the activation's name, and to the op's attributes
# that are the activation's parameters, with ONNX's defaults.
_DIRECT_OPS: dict[tuple[str, str], tuple[str, dict[str, float]]] = {
    ("", "Relu"): ("Relu", {}),
    ("", "Tanh"): ("Tanh", {}),
    ("", "Sigmoid"): ("Sigmoid", {}),
    ("", "HardSwish"): ("HardSwish", {}),
    ("com.microsoft", "Gelu"): ("Gelu", {}),
    ("", "LeakyRelu"): ("LeakyRelu", {"alpha": 0.01}),
    ("", "Elu"): ("Elu", {"alpha": 1.0}),
    ("", "HardSigmoid"): ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
}
_SPECIAL_OPS = {
    ("", "Gelu"),
    ("", "Clip"),
    ("", "Max"),
    ("", "Min"),
    ("", "Swish"),
    ("com.microsoft", "QuickGelu"),
    ("com.microsoft", "FastGelu"),
}
ACTIVATION_OPS = frozenset(_DIRECT_OPS) | frozenset(_SPECIAL_OPS)

# First opset in which Clip's bounds are inputs. In older opsets they are float32 attributes for all data
# types.
_CLIP_HAS_INPUTS = 11

# Maps powers of (x, f) to coefficients.
Polynomial = dict[tuple[int, int], float]

# Limit of the search. The longest decomposition, Gelu by tanh with x * x * x, has nine nodes.
_MAX_NODES = 14
# Limit of a product's degree in x and f together. No decomposition needs more than 3.
_MAX_DEGREE = 4
_X: Polynomial = {(1, 0): 1.0}
_F: Polynomial = {(0, 1): 1.0}
_X_TIMES_F: Polynomial = {(1, 1): 1.0}
_HALF_X_TIMES_1_PLUS_F: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
# Maximum relative difference of a coefficient from the expected coefficient. A coefficient is a product of up
# to three constants, each rounded to the type. The values for float32 and float64 also allow constants
# written with 6 and 13 decimals.
_TOLERANCE = {
    ir.DataType.DOUBLE: 1e-12,
    ir.DataType.FLOAT: 1e-5,
    ir.DataType.FLOAT16: 4 * 2.0**-11,
    ir.DataType.BFLOAT16: 4 * 2.0**-8,
}


def read_activation(
    node: ir.Node, value: ir.Value, element_type: ir.DataType, constants: Constants, *, opset: int
) -> Activation:
    """Return the activation that `node`, whose op is in ACTIVATION_OPS, applies to its input `value`.

    `opset` is the version of ONNX's own operators in the model.

    Raises:
        NotFusable: FusedConv does not have this activation, or not with these parameters.
    """
    op = (node.domain, node.op_type)
    if op in (("", "Clip"), ("", "Max"), ("", "Min")):
        minimum, maximum = clip_bounds(node, value, constants)
        # ONNX's default bounds of Clip are the finite limits of the type of its bounds.
        limit = max_finite((element_type if opset >= _CLIP_HAS_INPUTS else ir.DataType.FLOAT).numpy())
        minimum = -limit if minimum is None else minimum
        return _clip(minimum, limit if maximum is None else maximum, element_type)
    if node.inputs[0] is not value:
        raise NotFusable(f"it does not take {value.name!r} as its data")
    if op in _DIRECT_OPS:
        return Activation(_DIRECT_OPS[op][0], *_attribute_parameters(node))
    if op == ("", "Gelu"):
        return _gelu(node)
    if op == ("com.microsoft", "FastGelu"):
        if len(node.inputs) > 1 and node.inputs[1] is not None:
            raise NotFusable("it adds a bias of its own")
        return Activation("GeluTanh")
    # Swish or QuickGelu: x * sigmoid(alpha * x), which is SiLU if alpha is 1.
    alpha = read_float(node, "alpha", 1.0 if node.op_type == "Swish" else 1.702)
    if alpha != 1.0:
        raise NotFusable(f"its alpha is {alpha:g}; SiLU, which is fused, has 1")
    return Activation("SiLU")


def _attribute_parameters(node: ir.Node) -> tuple[float, ...]:
    _, defaults = _DIRECT_OPS.get((node.domain, node.op_type), ("", {}))
    return tuple(read_float(node, name, default) for name, default in defaults.items())


def clip_bounds(node: ir.Node, value: ir.Value, constants: Constants) -> tuple[float | None, float | None]:
    """Return the lower and the upper bound that a Clip, Max or Min `node` applies to `value`.

    Max and Min have one bound; the other is infinite. A bound that a Clip omits is None.

    Raises:
        NotFusable: `value` is not the data of a Clip, a Max or Min does not have two operands, a bound is not
            one constant number for all elements, or an attribute has a wrong type.
    """
    if node.op_type == "Clip":
        if node.inputs[0] is not value:
            raise NotFusable(f"it does not take {value.name!r} as its data")
        minimum = read_float(node, "min", None)
        maximum = read_float(node, "max", None)
        bounds = [*node.inputs[1:], None, None]
        if bounds[0] is not None:
            minimum = _bound(bounds[0], constants)
        if bounds[1] is not None:
            maximum = _bound(bounds[1], constants)
        return minimum, maximum
    others = [other for other in node.inputs if other is not value]
    if len(node.inputs) != 2 or len(others) != 1:
        raise NotFusable(f"a {node.op_type} is fused only if it has two operands, one of them constant")
    bound = _bound(others[0], constants)
    return (bound, math.inf) if node.op_type == "Max" else (-math.inf, bound)


def _bound(value: ir.Value | None, constants: Constants) -> float:
    bound = constants.scalar(value)
    tensor = constants.tensor(value)
    # A bound with more axes than the data would add axes to the result; the data have at least three.
    if bound is None or tensor is None or len(tensor.shape) > 3:
        raise NotFusable("its bounds are not one constant number for all elements")
    return bound


def _clip(minimum: float, maximum: float, element_type: ir.DataType) -> Activation:
    if not minimum <= maximum or minimum == math.inf or maximum == -math.inf:
        raise NotFusable(f"nothing is between its minimum, {minimum:g}, and its maximum, {maximum:g}")
    if (minimum, maximum) == (0.0, math.inf):
        return Activation("Relu")
    if element_type == ir.DataType.DOUBLE:
        with np.errstate(over="ignore"):
            as_attributes = np.array([minimum, maximum], np.float32).tolist()
        for bound, attribute in zip((minimum, maximum), as_attributes, strict=True):
            if attribute != bound:
                raise NotFusable(f"its bound {bound!r} is no float32, the type of the fused op's attributes")
    return Activation("Clip", minimum, maximum)


def _gelu(node: ir.Node) -> Activation:
    kind = read_text(node, "approximate", "none")
    names = {"none": "Gelu", "tanh": "GeluTanh"}
    if kind not in names:
        raise NotFusable(f"its approximation {kind!r} is not known")
    return Activation(names[kind])


@dataclass(frozen=True)
class Function:
    """Function f of a polynomial: an operator, its parameters, and its argument."""

    op: str
    parameters: tuple[float, ...]
    argument: Polynomial


@dataclass(frozen=True)
class _Decomposition:
    activation: Activation
    function: Function
    result: Polynomial


_ROOT = math.sqrt(2.0 / math.pi)
_DECOMPOSITIONS = (
    _Decomposition(Activation("SiLU"), Function("Sigmoid", (), _X), _X_TIMES_F),
    _Decomposition(Activation("Gelu"), Function("Erf", (), {(1, 0): math.sqrt(0.5)}), _HALF_X_TIMES_1_PLUS_F),
    _Decomposition(
        Activation("GeluTanh"),
        Function("Tanh", (), {(1, 0): _ROOT, (3, 0): _ROOT * 0.044715}),
        _HALF_X_TIMES_1_PLUS_F,
    ),
    _Decomposition(Activation("HardSwish"), Function("HardSigmoid", (1 / 6, 0.5), _X), _X_TIMES_F),
    _Decomposition(
        Activation("HardSwish"), Function("Clip", (0.0, 6.0), {(1, 0): 1.0, (0, 0): 3.0}), {(1, 1): 1 / 6}
    ),
    _Decomposition(
        Activation("HardSigmoid", 1 / 6, 0.5),
        Function("Clip", (0.0, 6.0), {(1, 0): 1.0, (0, 0): 3.0}),
        {(0, 1): 1 / 6},
    ),
)


def find_decomposed_activation(
    value: ir.Value, element_type: ir.DataType, constants: Constants
) -> tuple[Activation, list[ir.Node]] | None:
    """Return the activation that the consumers of `value` compute together, and its nodes in order.

    No other node reads `value` or a value between these nodes.
    """
    region = _Region(value, constants)
    for node in region.evaluate():
        if region.is_closed_except(node):
            activation = _match_decomposition(region, node.outputs[0], _TOLERANCE[element_type])
            if activation is not None:
                return activation, list(region.nodes)
    return None


class _Region:
    """Nodes that depend only on one value and constants, and the polynomials that they compute."""

    def __init__(self, value: ir.Value, constants: Constants) -> None:
        self._value = value
        self._constants = constants
        self.polynomials: dict[ir.Value, Polynomial] = {value: _X}
        self.nodes: dict[ir.Node, None] = {}
        self.function: Function | None = None

    def evaluate(self) -> Iterator[ir.Node]:
        """Add the nodes to the region in topological order, and yield each."""
        pending = self._unvisited_consumers(self._value)
        while pending and len(self.nodes) < _MAX_NODES:
            for node in pending:
                polynomial = self._compute(node)
                if polynomial is not None:
                    break
            else:
                return
            self.nodes[node] = None
            self.polynomials[node.outputs[0]] = polynomial
            pending.remove(node)
            new = self._unvisited_consumers(node.outputs[0])
            pending += [consumer for consumer in new if consumer not in pending]
            yield node

    def is_closed_except(self, last_node: ir.Node) -> bool:
        """Return whether only the output of `last_node` is read outside of this region."""
        inner = [self._value, *(node.outputs[0] for node in self.nodes if node is not last_node)]
        return not any(value.is_graph_output() for value in inner) and all(
            consumer in self.nodes for value in inner for consumer in value.consumers()
        )

    def _unvisited_consumers(self, value: ir.Value) -> list[ir.Node]:
        graph = self._graph()
        return [node for node in value.consumers() if node.graph is graph and node not in self.nodes]

    def _graph(self) -> object:
        producer = self._value.producer()
        return None if producer is None else producer.graph

    def _compute(self, node: ir.Node) -> Polynomial | None:
        """Return the polynomial of `node`, and remember the function if `node` is one.

        None if the node or an operand is no polynomial in x and f of limited degree, or `node` is a second
        function.
        """
        if node.domain != "" or len(node.outputs) != 1 or not node.inputs:
            return None
        if node.op_type in ("Erf", "Tanh", "Sigmoid", "HardSigmoid", "Clip"):
            return self._apply(node)
        operands = [self._operand(value) for value in node.inputs]
        polynomials = [operand for operand in operands if operand is not None]
        if len(polynomials) != len(operands):
            return None
        match node.op_type, polynomials:
            case "Add", [a, b]:
                return _add_polynomials(a, b)
            case "Sub", [a, b]:
                return _add_polynomials(a, _multiply_polynomials(b, {(0, 0): -1.0}))
            case "Neg", [a]:
                return _multiply_polynomials(a, {(0, 0): -1.0})
            case "Mul", [a, b]:
                return _none_if_degree_too_high(_multiply_polynomials(a, b))
            case "Div", [a, b] if b.keys() == {(0, 0)} and b[0, 0] != 0.0:
                return _multiply_polynomials(a, {(0, 0): 1.0 / b[0, 0]})
            case "Pow", [a, b] if b.keys() == {(0, 0)} and b[0, 0] in (2.0, 3.0):
                square = _multiply_polynomials(a, a)
                power = square if b[0, 0] == 2.0 else _multiply_polynomials(square, a)
                return _none_if_degree_too_high(power)
        return None

    def _operand(self, value: ir.Value | None) -> Polynomial | None:
        if value in self.polynomials:
            return self.polynomials[value]
        constant = self._constants.scalar(value)
        tensor = self._constants.tensor(value)
        # A constant with more axes than the data would add axes to the result; the data have at least three.
        if constant is None or tensor is None or len(tensor.shape) > 3:
            return None
        return {(0, 0): constant}

    def _apply(self, node: ir.Node) -> Polynomial | None:
        value = next((value for value in node.inputs if value in self.polynomials), None)
        if value is None or self.function is not None:
            # Every decomposition has one function; a second would need another variable in the polynomial.
            return None
        try:
            parameters = _parameters(node, value, self._constants)
        except NotFusable:
            return None
        self.function = Function(node.op_type, parameters, self.polynomials[value])
        return _F


def _parameters(node: ir.Node, value: ir.Value, constants: Constants) -> tuple[float, ...]:
    if node.op_type == "Clip":
        minimum, maximum = clip_bounds(node, value, constants)
        if minimum is None or maximum is None:
            raise NotFusable("no decomposition has a Clip with one bound")
        return minimum, maximum
    return _attribute_parameters(node)


def _match_decomposition(region: _Region, value: ir.Value, tolerance: float) -> Activation | None:
    function, result = region.function, region.polynomials[value]
    for decomposition in _DECOMPOSITIONS:
        expected = decomposition.function
        if (
            function is not None
            and function.op == expected.op
            and _all_close(function.parameters, expected.parameters, tolerance)
            and _equal_polynomials(function.argument, expected.argument, tolerance)
            and _equal_polynomials(result, decomposition.result, tolerance)
        ):
            return decomposition.activation
    return None


def _equal_polynomials(polynomial: Polynomial, expected: Polynomial, tolerance: float) -> bool:
    return polynomial.keys() == expected.keys() and _all_close(
        [polynomial[powers] for powers in expected], list(expected.values()), tolerance
    )


def _all_close(
    numbers: tuple[float, ...] | list[float], expected: tuple[float, ...] | list[float], tolerance: float
) -> bool:
    return all(
        math.isclose(number, other, rel_tol=tolerance)
        for number, other in zip(numbers, expected, strict=True)
    )


def _add_polynomials(a: Polynomial, b: Polynomial) -> Polynomial:
    total = {powers: a.get(powers, 0.0) + b.get(powers, 0.0) for powers in a | b}
    return {powers: coefficient for powers, coefficient in total.items() if coefficient != 0.0}


def _multiply_polynomials(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for (x, f), coefficient in a.items():
        for (other_x, other_f), other in b.items():
            total = _add_polynomials(total, {(x + other_x, f + other_f): coefficient * other})
    return total


def _none_if_degree_too_high(polynomial: Polynomial) -> Polynomial | None:
    if any(sum(powers) > _MAX_DEGREE for powers in polynomial):
        return None
    return polynomial
