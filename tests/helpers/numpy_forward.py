"""The layers of a network in NumPy, in float64, from their definitions; slow, and independent of convswap."""

from __future__ import annotations

import numpy as np


def convolve(x, weight, bias=None, stride=(1, 1), pad=(0, 0), dilate=(1, 1), groups=1):
    x = np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2))
    weight = np.asarray(weight, np.float64)
    filters, _, rows, columns = weight.shape
    spans = (dilate[0] * (rows - 1) + 1, dilate[1] * (columns - 1) + 1)
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=(2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilate[0], :: dilate[1]]
    per_group_in, per_group_out = x.shape[1] // groups, filters // groups
    y = np.concatenate(
        [
            np.einsum(
                "ncpqrs,kcrs->nkpq",
                windows[:, group * per_group_in : (group + 1) * per_group_in],
                weight[group * per_group_out : (group + 1) * per_group_out],
                optimize=True,
            )
            for group in range(groups)
        ],
        axis=1,
    )
    return y if bias is None else y + np.asarray(bias, np.float64)[None, :, None, None]


def pool(x, kernel, stride, pad=(0, 0), ceil=False, reduce=np.max, outside=-np.inf):
    round_steps = np.ceil if ceil else np.floor
    sizes = [
        int(round_steps((x.shape[2 + axis] + 2 * pad[axis] - kernel[axis]) / stride[axis])) + 1
        for axis in (0, 1)
    ]
    beyond = [max(0, (sizes[axis] - 1) * stride[axis] + kernel[axis]) for axis in (0, 1)]
    x = np.pad(
        x,
        ((0, 0), (0, 0), *((pad[axis], max(pad[axis], beyond[axis] - x.shape[2 + axis])) for axis in (0, 1))),
        constant_values=outside,
    )
    y = np.empty((*x.shape[:2], *sizes))
    for p in range(sizes[0]):
        for q in range(sizes[1]):
            rows = slice(p * stride[0], p * stride[0] + kernel[0])
            columns = slice(q * stride[1], q * stride[1] + kernel[1])
            y[:, :, p, q] = reduce(x[:, :, rows, columns], axis=(2, 3))
    return y


def dense(x, weight, bias=None):
    y = np.asarray(x, np.float64).reshape(len(x), -1) @ np.asarray(weight, np.float64).T
    return y if bias is None else y + np.asarray(bias, np.float64)


def softmax(x):
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
