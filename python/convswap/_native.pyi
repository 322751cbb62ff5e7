"""The compiled core of convswap: catalog, planner and direct calls."""

from collections.abc import Sequence
from typing import Literal, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

_Float = TypeVar("_Float", np.float32, np.float64)

__version__: str
tuning_header: str
"""The first line of every tuning table."""

class ConvAttributes(TypedDict, total=False):
    """The attributes of a node, ONNX's default for those left out; exists for type checkers alone."""

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

class Problem:
    """A convolution and what is fused with it: attributes and shapes, everything an algorithm needs."""

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
        """Check that shapes and attributes fit together; raises ConvswapError where they do not."""

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N, K, output...), after the pool where there is one."""

    @property
    def operations(self) -> int:
        """Multiplications and additions, padding counted as data."""

    @property
    def bytes(self) -> int:
        """Bytes that must move if every tensor is read or written once."""

    @property
    def text(self) -> str:
        """One line, the same for problems that no algorithm can tell apart."""

class Algorithm:
    """One way to compute convolutions on one kind of device."""

    @property
    def name(self) -> str:
        """What users type."""

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The kind of device."""

    @property
    def by_name_alone(self) -> bool:
        """Whether nobody gets it without asking for it by name."""

def catalog() -> list[Algorithm]:
    """Return every algorithm, for each device the fastest first, then those taken by name alone."""

def why_not(
    problem: Problem,
    algorithm: str,
    device: str,
    *,
    index: int = 0,
    compute_capability: int = 0,
    lends_scratch: bool = True,
) -> str:
    """Return why the algorithm cannot compute the problem on the device; "" where it can.

    `compute_capability` (90 for 9.0) asks about a typical card of that generation, which need not be here,
    and `lends_scratch` False about an ONNX Runtime before 1.18. Raises ConvswapError for an unknown algorithm
    or device, RuntimeError where the card is not there.
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
    """Return the name of the algorithm that the planner takes; `tuned` is the attribute of a node."""

def estimates(
    problem: Problem, device: str, *, index: int = 0, compute_capability: int = 0
) -> dict[str, float | None]:
    """Return the estimated milliseconds of each algorithm that can compute the problem, None without one."""

def describe_plan(problem: Problem, device: str, algorithm: str = "auto", *, index: int = 0) -> str:
    """Return the launch shape of the plan in words."""

def alternatives(
    problem: Problem, algorithm: str, most: int = 8, *, index: int = 0, compute_capability: int = 0
) -> list[float | None]:
    """Return the estimates of what a CUDA algorithm chooses among, in milliseconds, cheapest first."""

class OtherAlgorithm(TypedDict):
    """Why another algorithm of the catalog was not taken; exists for type checkers alone."""

    algorithm: str
    supports: bool
    why_not: str
    milliseconds: float | None

class KernelFacts(TypedDict):
    """What a card says of a kernel, and its launch; exists for type checkers alone."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    threads: int
    blocks: int

class Explanation(TypedDict):
    """How a problem is computed, and why; exists for type checkers alone."""

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
    """Return how the planner computes the problem, and why.

    "plan" and "kernels" are None for a card that is not here.
    """

def tuning_path() -> str:
    """Return the path of the user's tuning table, which need not be there."""

def tuning_device(device: str, *, index: int = 0) -> str:
    """Return the name of the device in a tuning table."""

def read_tuning_table() -> tuple[list[tuple[str, str, str, str, dict[str, float]]], str]:
    """Return the table's sound lines (device, version, problem, algorithm, times), and its damage or ""."""

def take_tuning_warning() -> str:
    """Return one line about damage that a reading of the table met; "" where there is nothing new to say."""

def conv(
    x: NDArray[_Float],
    w: NDArray[_Float],
    b: NDArray[_Float] | None = None,
    *,
    residual: NDArray[_Float] | None = None,
    depthwise: NDArray[_Float] | None = None,
    depthwise_bias: NDArray[_Float] | None = None,
    algorithm: str = "auto",
    threads: int = 0,
    instruction_set: str = "",
    **attributes: Unpack[ConvAttributes],
) -> NDArray[_Float]:
    """Return the convolution of C-contiguous arrays, and what is fused with it, by a CPU algorithm.

    x is (N, C, spatial...), w (K, C / group, filter...), b (K,), `residual` of the shape of the convolution's
    result, `depthwise` (C, 1, filter...) and `depthwise_bias` (C,) those of a depthwise convolution of x in
    front, all of one type. `threads` 0 uses every core. Raises ConvswapError for types, shapes or attributes
    that do not fit.
    """

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
    """Return the names of the card's kernels that the plan starts, each once; none on the CPU.

    With `compute_capability`, also those of what `tuned`, the attribute of a node, names for any card.
    """

def what_is_compiled(problem: Problem, device: str, algorithm: str = "auto", *, index: int = 0) -> str:
    """Return what a plan has to wait for, kernels that are compiled first; "" where all are there."""

class KernelFamilyFacts(TypedDict):
    """The kernels of a header; exists for type checkers alone."""

    header: str
    instances: list[str]
    least_capability: int
    is_for_it_alone: bool

def kernel_families() -> list[KernelFamilyFacts]:
    """Return all kernels that there may be on a card, by the headers that have them."""

class CompilerFacts(TypedDict, total=False):
    """What compiles kernels; exists for type checkers alone."""

    why_not: str
    version: str
    path: str
    compute_capabilities: list[int]

def kernel_compiler() -> CompilerFacts:
    """Return what compiles kernels; of a compiler that is not there, why."""

def compile_kernel(instance: str, compute_capability: int, *, keep: bool = True) -> bytes:
    """Return the code of a kernel for cards of a compute capability (90 for 9.0), kept or compiled."""

class PackWriter:
    """A pack in the making: kernels for cards that need not be here."""

    def __init__(self) -> None:
        """Begin an empty one."""

    def add(self, instance: str, compute_capability: int, *, is_portable: bool = False) -> int:
        """Compile a kernel, or take it from the store, and return its bytes; from any thread."""

    def write(self, path: str) -> None:
        """Write what was added, whole or not at all."""

def pack_contents(path: str) -> list[tuple[str, int]]:
    """Return the kernels of a pack and the compute capability of each."""

def ready_made_kernels() -> list[tuple[str, int]]:
    """Return the kernels that lie ready beside the library, as `pack_contents` has them."""

def compile_ahead(instances: Sequence[str], compute_capability: int) -> None:
    """Have kernels compiled and stored in the background, several at once; return at once."""

class KernelStoreFacts(TypedDict):
    """Where compiled kernels are kept; exists for type checkers alone."""

    folder: str
    unused: str
    kernels: int
    bytes: int

def kernel_store() -> KernelStoreFacts:
    """Return where compiled kernels are kept, why they are not, and how many there are."""

def take_kernel_store_warning() -> str:
    """One line about a kernel that was damaged or could not be kept; "" where there is nothing new to say."""

def clear_kernel_store() -> int:
    """Delete all kernels that are kept; return how many."""

class DeviceFacts(TypedDict):
    """What the driver says of a card; exists for type checkers alone."""

    name: str
    compute_capability: int
    multiprocessors: int
    shared_memory_per_block: int
    memory_bandwidth: float | None
    driver_cuda: str

def cuda_devices() -> list[DeviceFacts]:
    """Return what is known of each card; empty without a card or a driver."""

class DeviceArray:
    """A contiguous floating-point array in the memory of a card."""

    def __init__(self, shape: Sequence[int], type: str = "float32", device: int = 0, fence: int = 0) -> None:
        """Allocate memory, whose contents are undefined, with a fence of so many bytes on both sides."""

    @staticmethod
    def from_numpy(
        array: NDArray[np.float32] | NDArray[np.float64], device: int = 0, fence: int = 0
    ) -> DeviceArray:
        """Copy an array to the card."""

    def damage(self) -> int | None:
        """Return how far from the beginning a fence was first written to; None where they are whole."""

    def to_numpy(self) -> NDArray[np.float32] | NDArray[np.float64]:
        """Copy the array from the card."""

    def poison(self) -> None:
        """Fill the array with NaN."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, as given."""

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
    """Compute y on the card, with what is fused; return a run's mean milliseconds.

    `alternative` is a number of `alternatives`; with `prepared` the weights are prepared before the runs;
    `pack` and `compiles` are as the session entries convswap.pack and convswap.compile, and `files` has the
    paths of others. The time is the card's own. Raises ConvswapError where shapes or attributes do not fit,
    RuntimeError where CUDA fails.
    """

class LabFacts(KernelFacts):
    """What a card says of a user's kernel; exists for type checkers alone."""

    resident_blocks: int
    threads_per_multiprocessor: int

class LabSource:
    """A kernel of the user's own: its text, and what its comments say of it."""

    def __init__(self, name: str, text: str) -> None:
        """Read the comments; raises ConvswapError where they do not say what they must."""

    @property
    def interface(self) -> Literal["course", "conv"]:
        """What `forward` takes."""

    def why_not(self, problem: Problem) -> str:
        """Return why the kernel is not started for the problem; "" where it is."""

    def launch(
        self, problem: Problem, shared_limit: int
    ) -> tuple[tuple[int, int, int], tuple[int, int, int], int]:
        """Return grid, block and bytes of shared memory; raises ConvswapError where no card takes them."""

    def compile(self, compute_capability: int) -> bytes:
        """Return the code for such cards; raises RuntimeError with the compiler's words."""

    def facts(self, problem: Problem, *, index: int = 0) -> LabFacts:
        """Return what the card says of the kernel and its launch."""

def fill_shared_memory(index: int = 0) -> None:
    """Leave NaN in all shared memory of a card."""
