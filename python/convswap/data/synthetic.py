"""The data set `synthetic`: ten labelled shapes, drawn without files and identical on every machine.

Each image is one shape, moved, scaled, rotated and shaded at random, on a noisy background. The code uses
only elementwise additions, multiplications, divisions, square roots and uniform random numbers. These give
the same bits everywhere, unlike sines, normal random numbers and library sums.
"""

from __future__ import annotations

import numpy as np

CLASS_NAMES = (
    "disc",
    "ring",
    "square",
    "frame",
    "triangle",
    "plus",
    "diamond",
    "stripes",
    "checks",
    "crescent",
)
IMAGES_PER_SPLIT = 10_000
ORIGINAL_SIZE = 28
SEED = 408
# Images are drawn in full blocks, each with its own random stream, so the first N images do not depend on N.
BLOCK_IMAGES = 500
SPLIT_STREAMS = {"train": 0, "test": 1}


def originals(split: str, images: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first images of "train" or "test", uint8 (n, 28, 28), and their labels, int64 (n,)."""
    blocks = [_draw_block(split, block) for block in range(-(-images // BLOCK_IMAGES))]
    pixels = np.concatenate([block_pixels for block_pixels, _ in blocks])[:images]
    labels = np.concatenate([block_labels for _, block_labels in blocks])[:images]
    return pixels, labels


def _draw_block(split: str, block: int) -> tuple[np.ndarray, np.ndarray]:
    seed = np.random.SeedSequence([SEED, SPLIT_STREAMS[split], block])
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = generator.integers(0, len(CLASS_NAMES), BLOCK_IMAGES)

    def uniform(low: float, high: float) -> np.ndarray:
        return low + (high - low) * generator.random((BLOCK_IMAGES, 1, 1))

    x, y = _shape_coordinates(
        centre=(uniform(-0.12, 0.12), uniform(-0.12, 0.12)),
        scale=(uniform(0.65, 0.9), uniform(0.65, 0.9)),
        half_angle_tangent=uniform(-0.08, 0.08),
    )
    edge = uniform(3.0, 8.0)
    coverage = np.empty((BLOCK_IMAGES, ORIGINAL_SIZE, ORIGINAL_SIZE))
    for label in range(len(CLASS_NAMES)):
        mask = labels == label
        coverage[mask] = np.clip(0.5 - edge[mask] * _signed_distance(label, x[mask], y[mask]), 0, 1)

    shade = uniform(100, 230) * (1 + uniform(-0.25, 0.25) * x + uniform(-0.25, 0.25) * y)
    ground = uniform(0, 60)
    grain = uniform(20, 80) * (generator.random(coverage.shape) + generator.random(coverage.shape) - 1)
    pixels = ground + coverage * (shade - ground) + grain
    return np.clip(pixels, 0, 255).astype(np.uint8), labels


def _shape_coordinates(
    centre: tuple[np.ndarray, np.ndarray],
    scale: tuple[np.ndarray, np.ndarray],
    half_angle_tangent: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each pixel's coordinates in the frame of the shape, in which shapes extend from about -1 to 1.

    With t the tangent of half the angle, cosine and sine are (1 - t²) / (1 + t²) and 2t / (1 + t²).
    """
    axis = (np.arange(ORIGINAL_SIZE) + 0.5) / (ORIGINAL_SIZE / 2) - 1
    across, down = axis[None, None, :] - centre[0], axis[None, :, None] - centre[1]
    square = half_angle_tangent * half_angle_tangent
    cosine, sine = (1 - square) / (1 + square), 2 * half_angle_tangent / (1 + square)
    return (cosine * across + sine * down) / scale[0], (cosine * down - sine * across) / scale[1]


def _signed_distance(label: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return a signed distance: negative inside the shape, zero on its edge and positive outside."""
    radius = np.sqrt(x * x + y * y)
    box = np.maximum(np.abs(x), np.abs(y))
    match CLASS_NAMES[label]:
        case "disc":
            return radius - 0.95
        case "ring":
            return np.abs(radius - 0.75) - 0.2
        case "square":
            return box - 0.8
        case "frame":
            return np.abs(box - 0.7) - 0.18
        case "triangle":
            return np.maximum(y - 0.7, 1.6 * np.abs(x) - y - 0.75)
        case "plus":
            return np.maximum(np.minimum(np.abs(x), np.abs(y)) - 0.3, box - 0.95)
        case "diamond":
            return np.abs(x) + np.abs(y) - 1.1
        case "stripes":
            return np.maximum(box - 0.9, 0.5 * _wave(y))
        case "checks":
            return np.maximum(box - 0.9, 2 * _wave(x) * _wave(y))
        case _:
            bite = np.sqrt((x - 0.55) * (x - 0.55) + y * y)
            return np.maximum(radius - 0.95, 0.7 - bite)


def _wave(position: np.ndarray) -> np.ndarray:
    """Return a triangle wave between -0.25 and 0.25 that changes sign every 0.45."""
    phase = position / 0.9
    return np.abs(phase - np.floor(phase) - 0.5) - 0.25
