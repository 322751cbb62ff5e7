"""The convolutions of networks that convswap does not ship, from what was published of them, at batch 1."""

from __future__ import annotations

from convswap.timing.suite_layer import SuiteLayer


def depthwise(
    channels: int, kernel: int, size: int, stride: int = 1, *, network: str = "", batch: int | None = None
) -> SuiteLayer:
    """Return a depthwise convolution whose output has ceil(size / stride) rows."""
    strided = "" if stride == 1 else f"-s{stride}"
    return SuiteLayer(
        f"{network or 'depthwise'}-{'dw-' if network else ''}{channels}-{kernel}x{kernel}{strided}-{size}",
        channels,
        channels,
        kernel,
        size,
        stride,
        padding=kernel // 2,
        group=channels,
        batch=batch,
    )


def _dense(network: str, channels: int, filters: int, kernel: int, size: int, stride: int = 1) -> SuiteLayer:
    strided = "" if stride == 1 else f"-s{stride}"
    name = f"{network}-{channels}-{filters}-{kernel}x{kernel}{strided}-{size}"
    return SuiteLayer(name, channels, filters, kernel, size, stride, padding=kernel // 2, batch=1)


def _squeezed(network: str, channels: int, inner: int) -> list[SuiteLayer]:
    """Return the two of squeeze and excitation, whose images are single pixels."""
    return [_dense(network, channels, inner, 1, 1), _dense(network, inner, channels, 1, 1)]


def efficientnet_b0() -> list[SuiteLayer]:
    """Return those of EfficientNet-B0 on 224x224: Tan, Le, "EfficientNet" (2019), table 1."""
    name = "efficientnet-b0"
    layers = [_dense(name, 3, 32, 3, 224, stride=2)]
    before, size = 32, 112
    for expansion, kernel, stride, channels, repetitions in (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    ):
        for repetition in range(repetitions):
            hidden, own_stride = expansion * before, stride if repetition == 0 else 1
            if expansion > 1:
                layers.append(_dense(name, before, hidden, 1, size))
            layers.append(depthwise(hidden, kernel, size, own_stride, network=name, batch=1))
            size //= own_stride
            layers += [*_squeezed(name, hidden, before // 4), _dense(name, hidden, channels, 1, size)]
            before = channels
    return [*layers, _dense(name, before, 1_280, 1, size)]


def pp_ocr_v4() -> list[SuiteLayer]:
    """Return those of PP-OCRv4's mobile text detector on 640x640, with a backbone of 0.75 PP-LCNetV3.

    As the published ch_PP-OCRv4_det_infer has them: the parallel ones of training are one.
    """
    name = "pp-ocr-v4"
    layers = [_dense(name, 3, 16, 3, 640, stride=2)]
    before, size = 16, 320
    for kernel, channels, stride, is_squeezed in (
        (3, 32, 1, False),
        (3, 48, 2, False),
        (3, 48, 1, False),
        (3, 96, 2, False),
        (3, 96, 1, False),
        (3, 192, 2, False),
        (5, 192, 1, False),
        (5, 384, 2, True),
        (5, 384, 1, True),
        (5, 384, 1, False),
    ):
        layers.append(depthwise(before, kernel, size, stride, network=name, batch=1))
        size //= stride
        if is_squeezed:
            layers += _squeezed(name, before, before // 4)
        layers.append(_dense(name, before, channels, 1, size))
        before = channels
    for channels, inner, size in ((48, 12, 160), (96, 18, 80), (192, 42, 40), (384, 360, 20)):
        layers += [_dense(name, channels, inner, 1, size), _dense(name, inner, 96, 1, size)]
        layers.append(_dense(name, 96, 24, 3, size))
    return [*layers, *_squeezed(name, 96, 24), *_squeezed(name, 24, 6)]


def espcn() -> list[SuiteLayer]:
    """Return those of ESPCN on 224x224, for three times the resolution: Shi et al. (2016), as in PyTorch."""
    name = "espcn"
    widths = ((1, 64, 5), (64, 64, 3), (64, 32, 3), (32, 9, 3))
    return [_dense(name, channels, filters, kernel, 224) for channels, filters, kernel in widths]
