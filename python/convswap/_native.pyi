"""The compiled core of convswap: catalog, planner and direct calls."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import NDArray

_Float = TypeVar("_Float", np.float32, np.float64)
_Code = TypeVar("_Code", np.int8, np.uint8)

__version__: str
tuning_header: str
"""The first line of every tuning table."""

class ConvAttributes(TypedDict, total=False):
    """The attributes of a node; missing ones have ONNX's defaults. Exists only for type checkers."""

    auto_pad: str
    pads: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    group: int
    kernel_shape: Sequence[int]
    activation: str
    activation_alpha: float
    activation_beta: float
    pool: str
    pool_kernel_shape: Sequence[int]
    pool_strides: Sequence[int]
    pool_pads: Sequence[int]
    pool_ceil_mode: int
    pool_count_include_pad: int
    depthwise_pads: Sequence[int]
    depthwise_strides: Sequence[int]
    depthwise_dilations: Sequence[int]
    depthwise_activation: str
    depthwise_activation_alpha: float
    depthwise_activation_beta: float
    input_layout: str
    output_layout: str
    residual_layout: str
    x_zero_point: int
    y_scale: float
    sum_scale: float
    sum_zero_point: int
    z_scale: float
    z_zero_point: int
    y_type: str
    y_zero_point: int
    has_offset: int

class Problem:
    """A conv problem: attributes, shapes and epilogue, everything that an algorithm needs.

    With `type` "int8" or "uint8" it is the problem of a QuantConv. `y_type`, `y_zero_point` and `has_offset`
    are for such a problem only, and stand for inputs of the node. `y_type` is that of `x` by default.
    """

    def __init__(
        self,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        has_bias: bool = False,
        type: str = "float32",
        precision: str = "tf32",
        *,
        residual_shape: Sequence[int] | None = None,
        depthwise_shape: Sequence[int] | None = None,
        has_depthwise_bias: bool = False,
        **attributes: Unpack[ConvAttributes],
    ) -> None:
        """Check that shapes and attributes fit together; raises ConvswapError if they do not."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N, K, output...), after the pool if there is one."""

    @property
    def operations(self) -> int:
        """Multiplications and additions, padding counted as data."""

    @property
    def bytes(self) -> int:
        """Bytes that must move if every tensor is read or written once."""

    @property
    def text(self) -> str:
        """One line that identifies the problem for every algorithm."""

class Algorithm:
    """One way to compute convolutions on one kind of device."""

    @property
    def name(self) -> str:
        """The name that users type."""

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The kind of device."""

    @property
    def by_name_alone(self) -> bool:
        """True if the planner never selects it by itself."""

def catalog() -> list[Algorithm]:
    """Return all algorithms in the catalog's order, those that are selected only by name last."""

def why_not(
    problem: Problem,
    algorithm: str,
    device: str,
    *,
    index: int = 0,
    compute_capability: int = 0,
    lends_scratch: bool = True,
) -> str:
    """Return why the algorithm cannot compute the problem on the device; "" if it can.

    With `compute_capability` (90 for 9.0) the device is a typical card of that generation, which may be
    absent. `lends_scratch` is False for ONNX Runtime before 1.18. Raises ConvswapError for an unknown
    algorithm or device, RuntimeError if the card does not exist.
    """

def choose(
    problem: Problem,
    device: str,
    algorithm: str = "auto",
    *,
    index: int = 0,
    compute_capability: int = 0,
    lends_scratch: bool = True,
    tuned: str = "",
) -> str:
    """Return the name of the algorithm that the planner selects; `tuned` is the node's attribute."""

def estimates(
    problem: Problem, device: str, *, index: int = 0, compute_capability: int = 0
) -> dict[str, float | None]:
    """Return the estimates in milliseconds of all algorithms that support the problem; None: no estimate."""

def describe_plan(problem: Problem, device: str, algorithm: str = "auto", *, index: int = 0) -> str:
    """Return the plan's launch shape as text."""

class Alternative(TypedDict):
    """A tiling of a CUDA algorithm, with its estimate; exists for type checkers alone."""

    tiling: str
    milliseconds: float | None
    kernels: list[str]

def alternatives(
    problem: Problem, algorithm: str, most: int = 8, *, index: int = 0, compute_capability: int = 0
) -> list[Alternative]:
    """Return the first tilings of a CUDA algorithm in ascending order of its estimates."""

class OtherAlgorithm(TypedDict):
    """An algorithm that was not selected, with the reason. Exists only for type checkers."""

    algorithm: str
    supports: bool
    why_not: str
    milliseconds: float | None

class KernelFacts(TypedDict):
    """A kernel's resources and launch shape. Exists only for type checkers."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    threads: int
    blocks: int

class Explanation(TypedDict):
    """The plan of a problem, with the reasons. Exists only for type checkers."""

    device: str
    algorithm: str
    decided_by: Literal["name", "rule", "tuned", "file"]
    why: str
    milliseconds: float | None
    plan: str | None
    kernels: list[KernelFacts] | None
    bytes: int
    operations: int
    others: list[OtherAlgorithm]

def explain(
    problem: Problem,
    device: str,
    algorithm: str = "auto",
    *,
    index: int = 0,
    compute_capability: int = 0,
    tuned: str = "",
) -> Explanation:
    """Return the planner's choice for the problem, with the reasons.

    "plan" and "kernels" are None for an absent card.
    """

def tuning_path() -> str:
    """Return the path of the user's tuning table, which may not exist."""

def tuning_device(device: str, *, index: int = 0) -> str:
    """Return the name of the device in a tuning table."""

def read_tuning_table() -> tuple[list[tuple[str, str, str, str, dict[str, float]]], str]:
    """Return the table's valid lines (device, version, problem, algorithm, times) and its damage, or ""."""

def take_tuning_warning() -> str:
    """Return a warning about damage of the tuning table and clear it; "" if there is none."""

@overload
def conv(
    x: NDArray[_Float],
    w: NDArray[_Float],
    b: NDArray[_Float] | None = None,
    *,
    residual: NDArray[_Float] | None = None,
    depthwise: NDArray[_Float] | None = None,
    depthwise_bias: NDArray[_Float] | None = None,
    scale: None = None,
    offset: None = None,
    sum_values: None = None,
    algorithm: str = "auto",
    threads: int = 0,
    instruction_set: str = "",
    **attributes: Unpack[ConvAttributes],
) -> NDArray[_Float]:
    """Return the convolution of C-contiguous arrays, with its epilogue, by a CPU algorithm.

    x is (N, C, spatial...), w (K, C / group, filter...), b (K,), and `residual` has the shape of the
    convolution's output. `depthwise` (C, 1, filter...) and `depthwise_bias` (C,) belong to a depthwise
    convolution of x in front. In the layout NHWC a tensor is (N, spatial..., C). All arrays have the same
    type. `threads` 0 uses every core. `instruction_set` takes NCHW only. Raises ConvswapError for types,
    shapes or attributes that do not fit.
    """

@overload
def conv(
    x: NDArray[_Code],
    w: NDArray[np.int8],
    b: NDArray[np.int32] | None = None,
    *,
    residual: NDArray[_Code] | None = None,
    depthwise: None = None,
    depthwise_bias: None = None,
    scale: NDArray[np.float32],
    offset: NDArray[np.float32] | None = None,
    sum_values: NDArray[np.float32] | None = None,
    algorithm: str = "auto",
    threads: int = 0,
    instruction_set: str = "",
    **attributes: Unpack[ConvAttributes],
) -> NDArray[Any]:
    """Return the result of a QuantConv; `scale` and `offset` are (K,), `sum_values` is (256,)."""

def direct_instruction_sets() -> list[str]:
    """Return the instruction sets of `direct` that this processor has, best first."""

def kernels_of(
    problem: Problem,
    device: str,
    algorithm: str = "auto",
    *,
    index: int = 0,
    compute_capability: int = 0,
    tuned: str = "",
) -> list[str]:
    """Return the names of the kernel instances that the plan launches, each once; empty for the CPU.

    With `compute_capability` also those of the algorithms that `tuned`, the node's attribute, names for any
    card.
    """

def what_is_compiled(problem: Problem, device: str, algorithm: str = "auto", *, index: int = 0) -> str:
    """Return one line about kernels that a plan has to compile first; "" if there are none."""

class KernelFamilyFacts(TypedDict):
    """The kernel instances of a header. Exists only for type checkers.

    The instances are compiled for `least_capability` and newer, or with `is_for_it_alone` only for that one.
    """

    header: str
    instances: list[str]
    least_capability: int
    is_for_it_alone: bool

def kernel_families() -> list[KernelFamilyFacts]:
    """Return all kernel instances, by the headers that define them."""

class CompilerFacts(TypedDict, total=False):
    """NVRTC, the run-time compiler. Exists only for type checkers."""

    why_not: str
    version: str
    path: str
    compute_capabilities: list[int]

def kernel_compiler() -> CompilerFacts:
    """Return the version and path of NVRTC; if there is none, only "why_not"."""

def compile_kernel(instance: str, compute_capability: int, *, keep: bool = True) -> bytes:
    """Return a kernel's code for a compute capability (90 for 9.0); `keep`: use and fill the kernel store."""

class PackWriter:
    """Collects the kernels of a pack, also for absent cards."""

    def __init__(self) -> None:
        """Begin an empty pack."""

    def add(self, instance: str, compute_capability: int, *, is_portable: bool = False) -> int:
        """Compile a kernel, or read it from the kernel store, and return its size in bytes. Thread-safe."""

    def write(self, path: str) -> None:
        """Write the pack atomically."""

def pack_contents(path: str) -> list[tuple[str, int]]:
    """Return the kernels of a pack, each with its compute capability."""

def ready_made_kernels() -> list[tuple[str, int]]:
    """Return the ready-made kernels beside the library, like `pack_contents`."""

def coefficients() -> list[tuple[str, str, str, str]]:
    """Return family, name, unit and scale of each coefficient of the cost formulas."""

def fitted_costs(*, index: int = 0, compute_capability: int = 0) -> tuple[str, list[float]]:
    """Return the nearest card that has a table of coefficients, and the table."""

def cost_table(*, index: int = 0, compute_capability: int = 0) -> tuple[str, list[float]]:
    """Return the origin of a card's coefficients in words, and the coefficients."""

def with_factors(values: Sequence[float], factors: Mapping[str, float]) -> list[float]:
    """Return coefficients with the times of families and scales multiplied; see with_factors in C++."""

calibration_problem: str
"""The problem of the tuning table's line that `convswap calibrate` writes."""

class Estimates:
    """Estimates of some of an algorithm's tilings, for any coefficients."""

    def __init__(
        self,
        problem: Problem,
        algorithm: str,
        tilings: Sequence[str],
        *,
        index: int = 0,
        compute_capability: int = 0,
    ) -> None:
        """Search the tilings; `tilings` are names of `alternatives`."""

    def milliseconds(self, values: Sequence[float]) -> list[float | None]:
        """Return the estimate of each tiling; None for a tiling that the algorithm does not have."""

def compile_ahead(instances: Sequence[str], compute_capability: int) -> None:
    """Compile and store kernels in background threads; returns immediately."""

class KernelStoreFacts(TypedDict):
    """The state of the kernel store. Exists only for type checkers."""

    folder: str
    unused: str
    kernels: int
    bytes: int

def kernel_store() -> KernelStoreFacts:
    """Return the kernel store's folder, why it is not used (or ""), and its number of kernels and bytes."""

def take_kernel_store_warning() -> str:
    """Return a warning about a damaged or unwritable kernel and clear it; "" if there is none."""

def clear_kernel_store() -> int:
    """Delete all kernels in the store; return their number."""

class DeviceFacts(TypedDict):
    """A card's properties. Exists only for type checkers."""

    name: str
    compute_capability: int
    multiprocessors: int
    shared_memory_per_block: int
    memory_bandwidth: float | None
    clock: float | None
    is_restricted: bool
    cost_table: str
    driver_cuda: str

def cuda_devices() -> list[DeviceFacts]:
    """Return the properties of each card; empty without a card or a driver."""

class DeviceArray:
    """A contiguous array in the memory of a card: floating-point numbers, int8, uint8 or int32."""

    def __init__(self, shape: Sequence[int], type: str = "float32", device: int = 0, fence: int = 0) -> None:
        """Allocate uninitialised memory with a fence of `fence` bytes on both sides."""

    @staticmethod
    def from_numpy(array: NDArray[Any], device: int = 0, fence: int = 0) -> DeviceArray:
        """Copy an array to the card."""

    def damage(self) -> int | None:
        """Return the offset of the first overwritten fence byte from the array's beginning, or None."""

    def to_numpy(self) -> NDArray[Any]:
        """Copy the array from the card."""

    def poison(self) -> None:
        """Fill the array with NaN, or the codes of the same bits."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""

    @property
    def pointer(self) -> int:
        """The address in the card's memory."""

def conv_device(
    x: DeviceArray,
    w: DeviceArray,
    b: DeviceArray | None,
    y: DeviceArray,
    *,
    residual: DeviceArray | None = None,
    depthwise: DeviceArray | None = None,
    depthwise_bias: DeviceArray | None = None,
    scale: DeviceArray | None = None,
    offset: DeviceArray | None = None,
    sum_values: DeviceArray | None = None,
    algorithm: str = "auto",
    precision: str = "tf32",
    runs: int = 1,
    alternative: int = 0,
    prepared: bool = False,
    pack: str = "",
    compiles: bool = True,
    files: dict[str, str] = ...,
    **attributes: Unpack[ConvAttributes],
) -> float:
    """Compute y on the card, with the epilogue; return the mean GPU time of a run in milliseconds.

    If x has codes, w is int8, b int32, and `scale`, `offset` (K,) and `sum_values` (256,) are float32, as for
    QuantConv.
    `alternative` is an index into `alternatives`. With `prepared` the weights are packed before the runs.
    `pack` and `compiles` correspond to the session entries convswap.pack and convswap.compile; `files` maps
    other session entries to paths. Raises ConvswapError if shapes or attributes do not fit, RuntimeError if
    CUDA fails.
    """

class LabFacts(KernelFacts):
    """The resources and occupancy of a user's kernel. Exists only for type checkers."""

    resident_blocks: int
    threads_per_multiprocessor: int

class LabSource:
    """A user's kernel: its source and the directives in its comments."""

    def __init__(self, name: str, text: str) -> None:
        """Parse the directives; raises ConvswapError if one is missing or invalid."""

    @property
    def interface(self) -> Literal["course", "conv"]:
        """The interface of `forward`: the course's arguments, or those of a Conv."""

    def why_not(self, problem: Problem) -> str:
        """Return why the kernel cannot compute the problem; "" if it can."""

    def launch(
        self, problem: Problem, shared_limit: int
    ) -> tuple[tuple[int, int, int], tuple[int, int, int], int]:
        """Return grid, block and bytes of shared memory; raises ConvswapError if no card supports them."""

    def compile(self, compute_capability: int) -> bytes:
        """Return the code for a compute capability; raises RuntimeError with the compiler's log."""

    def facts(self, problem: Problem, *, index: int = 0) -> LabFacts:
        """Return the kernel's resources, launch shape and occupancy on the card."""

def fill_shared_memory(index: int = 0) -> None:
    """Fill all shared memory of a card with NaN."""
