"""PyTorch's convolution of a layer, which `bench --against all` times too if PyTorch is installed.

PyTorch shows the best that cuDNN can do: it times cuDNN's algorithms first (`cudnn.benchmark`), and its
tensors may be channels-last, which ONNX Runtime's default provider does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from convswap.timing.gpu_timer import GpuTimer
from convswap.timing.suites import SuiteLayer

if TYPE_CHECKING:
    import torch

# The names of the sides, by the memory format of the tensors.
CONTIGUOUS, CHANNELS_LAST = "pytorch", "pytorch_channels_last"


class PyTorchRun:
    """A layer's convolution with input and weights on the device, ready to be run and timed.

    `result` is the output of the last run, (batch, filters, spatial...).
    """

    result: torch.Tensor

    def __init__(
        self,
        layer: SuiteLayer,
        x: torch.Tensor,
        w: torch.Tensor,
        memory_format: torch.memory_format,
        stream: int | None = None,
    ) -> None:
        """Convert the tensors to `memory_format`; `stream` is a CUDA stream to run on."""
        self._convolve = convolution(layer)
        self._x, self._w = (each.contiguous(memory_format=memory_format) for each in (x, w))
        self._stream = stream

    def once(self) -> None:
        """Run and wait for the result."""
        self.start(1)
        self.wait()

    def start(self, runs: int) -> None:
        """Start `runs` runs back to back."""
        import torch

        stream = (
            nullcontext()
            if self._stream is None
            else torch.cuda.stream(torch.cuda.ExternalStream(self._stream))
        )
        with torch.no_grad(), stream:
            for _ in range(runs):
                self.result = self._convolve(self._x, self._w)

    def wait(self) -> None:
        """Wait for all runs that were started."""
        import torch

        if self._x.is_cuda:
            torch.cuda.synchronize()


def pytorch_runs(
    layer: SuiteLayer, x: np.ndarray, w: np.ndarray, precision: str, timer: GpuTimer | None
) -> dict[str, PyTorchRun]:
    """Return a run of `layer` on the first card for each memory format of its tensors, by the side's name.

    The result is empty if PyTorch is not installed or sees no card. Runs that fail are left out, for want of
    memory or because PyTorch's cuDNN clashes with ONNX Runtime's. `precision` is that of `bench`; float32
    tensors are multiplied as TF32 unless it is "ieee". The runs use the stream of `timer` if there is one.
    """
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = precision != "ieee"
    stream = None if timer is None else timer.stream
    runs = {}
    for name, memory_format in memory_formats(layer).items():
        try:
            tensors = [tensor_of(each, precision).cuda() for each in (x, w)]
            run = PyTorchRun(layer, tensors[0], tensors[1], memory_format, stream)
            # The tensors were converted on another stream. The first run makes cuDNN time its algorithms.
            torch.cuda.synchronize()
            run.once()
        except RuntimeError:
            continue
        runs[name] = run
    return runs


def tensor_of(values: np.ndarray, precision: str) -> torch.Tensor:
    """Return the values as a tensor of the precision's element type, in the host's memory."""
    import torch

    types = {"float16": torch.float16, "bfloat16": torch.bfloat16}
    return torch.from_numpy(values.astype(np.float32, copy=False)).to(types.get(precision, torch.float32))


def memory_formats(layer: SuiteLayer) -> dict[str, torch.memory_format]:
    """Return the memory formats of the layer's tensors by the name of the side; one format for rank 1."""
    import torch

    formats = {CONTIGUOUS: torch.contiguous_format}
    if layer.rank > 1:
        formats[CHANNELS_LAST] = torch.channels_last if layer.rank == 2 else torch.channels_last_3d
    return formats


def convolution(layer: SuiteLayer) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function that convolves (batch, channels, spatial...) by (filters, channels, kernel...).

    The channels of the filters are those of a group. The function applies the layer's activation in place, as
    PyTorch's networks do.
    """
    from torch.nn import functional

    of_rank = (functional.conv1d, functional.conv2d, functional.conv3d)[layer.rank - 1]
    activations = {"SiLU": functional.silu, "HardSwish": functional.hardswish, "Relu": functional.relu}
    activate = None if layer.activation is None else activations[layer.activation]

    def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = of_rank(x, w, None, layer.stride, layer.padding, layer.dilation, layer.group)
        return y if activate is None else activate(y, inplace=True)

    return convolve
