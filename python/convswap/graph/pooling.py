"""Recognise the poolings that `convswap.FusedConv` and `convswap.LayoutPool` compute."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from convswap.graph.epilogue import NotFusable, Pool, read_int, read_ints, read_text

POOL_OPS = frozenset({("", "MaxPool"), ("", "AveragePool")})


# ONNX Runtime gives one window to an axis whose padded input is smaller than the kernel; the window then
# overhangs. Without ceil_mode, its AveragePool with count_include_pad counts the overhang below this opset,
# as convswap does, and not from it on. With ceil_mode neither ever counts it.
_FIRST_OPSET_THAT_SKIPS_OVERHANG = 19


def read_pool(node: ir.Node, sizes: Sequence[int | None], *, opset: int, contradicted: bool = False) -> Pool:
    """Return the pooling of `node`, whose op is in POOL_OPS, in a model of opset `opset`.

    `sizes` has the height and width of the node's input, None for an extent that does not follow from the
    model's inputs. `contradicted` tells whether the model declares other extents.

    Raises:
        NotFusable: convswap does not have this pooling.
    """
    kernel = read_ints(node, "kernel_shape", ())
    if len(kernel) != 2:
        raise NotFusable("it does not pool over two axes, height and width")
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise NotFusable("its Indices are read, which convswap does not compute")
    dilations = read_ints(node, "dilations", (1, 1))
    if any(dilation != 1 for dilation in dilations):
        raise NotFusable(f"its dilations are {dilations}, which convswap does not compute")
    strides = read_ints(node, "strides", (1, 1))
    ceil_mode = bool(read_int(node, "ceil_mode", 0))
    auto_pad = read_text(node, "auto_pad", "NOTSET")
    if auto_pad in ("", "NOTSET"):
        pads = read_ints(node, "pads", (0, 0, 0, 0))
    elif auto_pad == "VALID":
        if ceil_mode:
            raise NotFusable(
                "it has ceil_mode with auto_pad VALID, whose windows ONNX does not define alike everywhere"
            )
        pads = (0, 0, 0, 0)
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        known_sizes = [size for size in sizes if size is not None]
        if any(stride > window for stride, window in zip(strides, kernel, strict=False)):
            # ONNX Runtime crops the input or fails in this case; the operator's specification does neither.
            raise NotFusable(f"its auto_pad is {auto_pad} with strides beyond its kernel")
        if len(known_sizes) != 2:
            raise NotFusable(
                f"its auto_pad is {auto_pad}, and the size of what it pools is not known "
                "from the shapes of the model's inputs"
            )
        if contradicted:
            raise NotFusable(
                f"its auto_pad is {auto_pad}, and the size of its input that the model declares "
                "differs from the one that follows from the model's inputs"
            )
        pads = _same_pads(known_sizes, kernel, strides, at_end=auto_pad == "SAME_UPPER")
    else:
        raise NotFusable(f"its auto_pad {auto_pad!r} is not known")
    if len(strides) != 2 or len(pads) != 4 or min(*kernel, *strides) < 1:
        raise NotFusable(f"its kernel_shape {kernel}, strides {strides} and pads {pads} do not fit together")
    if min(pads) < 0 or any(pad >= size for pad, size in zip(pads, kernel * 2, strict=True)):
        raise NotFusable(f"its pads {pads} are not from 0 to below its kernel_shape {kernel}")
    for size, window, begin, end in zip(sizes, kernel, pads, pads[2:], strict=False):
        if size is not None and size + begin + end < window:
            raise NotFusable(
                f"its kernel_shape {kernel} reaches over more than the {size + begin + end} padded positions"
            )
    counts_padding = bool(read_int(node, "count_include_pad", 0))
    # With ceil_mode convswap does not count the overhang either.
    if counts_padding and not ceil_mode and opset >= _FIRST_OPSET_THAT_SKIPS_OVERHANG:
        # Without pads, count_include_pad only matters for the overhang, so it can be dropped.
        counts_padding = not _window_may_exceed_input(sizes, kernel, pads)
        if any(pads) and not counts_padding:
            raise NotFusable(
                f"its kernel_shape {kernel} may reach over more than what it pools, whose size is not known "
                "from the shapes of the model's inputs, and its count_include_pad is 1"
            )
    return Pool(
        node.op_type,
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (pads[0], pads[1], pads[2], pads[3]),
        ceil_mode,
        counts_padding,
    )


def _window_may_exceed_input(sizes: Sequence[int | None], kernel: Sequence[int], pads: Sequence[int]) -> bool:
    """Return whether the window may be larger than the padded input along an axis of unknown size."""
    min_size = 1
    return any(
        size is None and window > begin + min_size + end
        for size, window, begin, end in zip(sizes, kernel, pads, pads[2:], strict=False)
    )


def _same_pads(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], *, at_end: bool
) -> tuple[int, ...]:
    """Return begin and end pads for ceil(size / stride) windows.

    The extra pad of an odd total is at the end with `at_end`, else at the beginning.
    """
    begins, ends = [], []
    for size, window, stride in zip(sizes, kernel, strides, strict=True):
        windows = -(-size // stride)
        total = max((windows - 1) * stride + window - size, 0)
        smaller, larger = total // 2, total - total // 2
        begins.append(smaller if at_end else larger)
        ends.append(larger if at_end else smaller)
    return (*begins, *ends)
