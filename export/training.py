"""Trains a network on labelled images with PyTorch, for the weights in models/weights.

The optimiser is AdamW, Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), with a cosine
schedule of the learning rate ("SGDR", 2017). Every image is mirrored with probability one half each time,
which does not change a garment's class. The whole data set is on the device, as bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from convswap.data import datasets
from convswap.data.datasets import Dataset
from convswap.errors import ConvswapError, unknown_name
from convswap.models import RANDOM, Network, find, pack_weights, seeded_weights, unpack_weights
from convswap.progress import Progress, silent
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import nn

DEVICES = ("cuda", "cpu")
LARGEST_SEED = 2**32 - 1
EVALUATED_AT_ONCE = 500

Weights = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Recipe:
    """The hyperparameters of a training run.

    The learning rate rises linearly to `learning_rate` in the first `warm_up` of the steps, and falls to zero
    along half a cosine. In the last `rounded` of the epochs the large layers compute with 4-bit weights, as
    they will be stored. `training_images` limits the images that are learned from; None means all.
    """

    epochs: int = 24
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warm_up: float = 0.1
    rounded: float = 1 / 3
    training_images: int | None = None


_RECIPES = {
    # Few images, so that the accuracy stays about as low as the course's: 0.63 of the held-out images.
    "ece408-2017-low": Recipe(epochs=30, batch=8, training_images=35),
}


def recipe_for(network: Network) -> Recipe:
    """Return the hyperparameters for `network`."""
    return _RECIPES.get(network.name, Recipe())


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network: the content of its weights file, and the accuracy of the stored weights.

    `held_out_accuracy` is that of the held-out training images, `test_accuracy` that of the test images.
    """

    content: bytes
    held_out_accuracy: float
    test_accuracy: float


def train_network(
    name: str,
    *,
    data: str = "fashion-mnist",
    images: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Progress | None = None,
) -> TrainedNetwork:
    """Train the network called `name` on the training images of `data`; return its weights file.

    Only the first `images` images are used (all if None). The last tenth of them is held out and selects the
    epoch; the test images select nothing. `epochs` is by default the network's own number. `seed` determines
    the initial weights and the order of the images; the same seed on the same machine gives the same bytes.
    `device` is "cuda" or "cpu", by default the card if PyTorch sees one. `progress` gets a line for each
    epoch.

    Raises ConvswapError if PyTorch is missing, a name is unknown, a number is out of range, the device is
    missing or its memory is too small, or the training diverges.
    """
    network = find(name)
    if network.data == RANDOM:
        raise ConvswapError(
            f"{name} is not one of the course's networks, and only these are trained; "
            "see `convswap export --list`"
        )
    _require_torch()
    selected_device = _choose_device(device)
    if not 0 <= seed <= LARGEST_SEED:
        raise ConvswapError(f"--seed {seed} is out of range; choose 0 to {LARGEST_SEED}")
    if epochs is not None and epochs < 1:
        raise ConvswapError(f"--epochs {epochs}: expected 1 or more")
    recipe = recipe_for(network)
    recipe = dataclasses.replace(recipe, epochs=epochs or recipe.epochs)
    report = progress or silent
    report(f"reading {data} at {network.image_size}x{network.image_size}")
    # Both data sets are loaded now, so that a missing one is reported before the training.
    labelled = datasets.load(data, split="train", images=images, image_size=network.image_size)
    test = datasets.load(data, image_size=network.image_size)
    weights, held_out = train(network, labelled, recipe, seed=seed, device=selected_device, progress=report)

    report("testing what is stored")
    made = {
        "command": _command(name, data, images, epochs, seed),
        "data": data,
        "device": selected_device,
        **dataclasses.asdict(recipe),
        "held_out_accuracy": round(held_out, 4),
    }
    stored = unpack_weights(network, pack_weights(network, weights, made), name).arrays
    made["test_accuracy"] = round(accuracy(network, stored, test, selected_device), 4)
    return TrainedNetwork(pack_weights(network, weights, made), held_out, made["test_accuracy"])


def _command(name: str, data: str, images: int | None, epochs: int | None, seed: int) -> str:
    """Return the command line for the same training on the same kind of device."""
    options = [f"--data {data}"] if data != "fashion-mnist" else []
    options += [f"--images {images}"] if images is not None else []
    options += [f"--epochs {epochs}"] if epochs is not None else []
    options += [f"--seed {seed}"] if seed else []
    return " ".join(["convswap train", name, *options])


def train(
    network: Network, data: Dataset, recipe: Recipe, *, seed: int, device: str, progress: Progress
) -> tuple[Weights, float]:
    """Train `network` on `data`; return the weights, and their accuracy on the held-out images.

    The last tenth of the images is held out. The weights are those of the epoch with rounded weights that is
    the most accurate on them. Raises the same ConvswapErrors as `train_network`.
    """
    import torch

    if data.labels is None or len(data.images) < 2:
        raise ConvswapError(f"{data.name} cannot be learned from: expected two labelled images or more")
    held_out = max(1, len(data.images) // 10)
    learned = min(len(data.images) - held_out, recipe.training_images or len(data.images))
    initial = seeded_weights(dataclasses.replace(network, seed=network.seed + seed))
    with _deterministic_float32(device):
        pixels = torch.from_numpy(data.images.astype(np.uint8)).to(device)
        labels = torch.from_numpy(data.labels).to(device)
        run = TrainingRun(
            network, initial, recipe, steps=-(-learned // recipe.batch), seed=seed, device=device
        )
        best, best_accuracy = {}, -1.0
        for epoch in range(1, recipe.epochs + 1):
            started = time.monotonic()
            loss = run.epoch(epoch, pixels[:learned], labels[:learned])
            if not math.isfinite(loss):
                raise ConvswapError(
                    f"the training of {network.name} diverged in epoch {epoch}: try another --seed"
                )
            held_out_accuracy = _accuracy(run.module, pixels[-held_out:], labels[-held_out:])
            progress(
                f"{network.name}: epoch {epoch} of {recipe.epochs}, loss {loss:.4f}, accuracy "
                f"{held_out_accuracy:.4f} of {held_out} held out, {time.monotonic() - started:.1f} s"
            )
            if run.rounded and held_out_accuracy > best_accuracy:
                best, best_accuracy = run.weights(), held_out_accuracy
    return best, best_accuracy


def accuracy(network: Network, weights: Weights, data: Dataset, device: str) -> float:
    """Return the top-1 accuracy of `network` with `weights` on `data`.

    Raises ConvswapError if the device's memory is too small.
    """
    import torch
    from convswap.export.torch_network import torch_network

    with _deterministic_float32(device):
        module = torch_network(network, weights).to(device)
        pixels = torch.from_numpy(data.images.astype(np.uint8)).to(device)
        return _accuracy(module, pixels, torch.from_numpy(data.labels).to(device))


class TrainingRun:
    """The state of a training: the module, the optimiser, the learning rate and the order of the images.

    All random numbers are drawn on the CPU, so the order of the images is the same on every device.
    """

    def __init__(
        self, network: Network, initial: Weights, recipe: Recipe, *, steps: int, seed: int, device: str
    ) -> None:
        """Start from the weights `initial`; each of the recipe's epochs has `steps` steps."""
        import torch
        from convswap.export.torch_network import torch_network

        self.module: nn.Sequential = torch_network(network, initial).to(device)
        self.rounded = False
        self._network = network
        self._recipe = recipe
        self._random = torch.Generator().manual_seed(seed)
        self._optimiser = torch.optim.AdamW(
            self.module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimiser, lambda step: _rate_factor(step, recipe.epochs * steps, recipe.warm_up)
        )

    def epoch(self, number: int, pixels: torch.Tensor, labels: torch.Tensor) -> float:
        """Train on every image once, in epoch `number`, counted from 1, and return the mean loss."""
        import torch
        from convswap.export.torch_network import round_large_layers

        recipe = self._recipe
        if not self.rounded and number > recipe.epochs - max(1, round(recipe.epochs * recipe.rounded)):
            round_large_layers(self._network, self.module)
            self.rounded = True
        self.module.train()
        total = torch.zeros((), device=pixels.device)
        for indices, mirrored in self._batches(len(pixels), pixels.device):
            images = pixels[indices]
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
            total += self._step(images, labels[indices]) * len(images)
        # The loss is read once per epoch, because reading it waits for the device.
        return float(total) / len(pixels)

    def weights(self) -> Weights:
        """Return the weights that the module computes with now."""
        from convswap.export.torch_network import weights_of

        return weights_of(self._network, self.module)

    def _batches(self, images: int, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the indices of the images of each batch, and which of them are mirrored."""
        import torch

        order = torch.randperm(images, generator=self._random).to(device)
        mirrored = (torch.rand(images, generator=self._random) < 0.5).to(device)
        yield from zip(order.split(self._recipe.batch), mirrored.split(self._recipe.batch), strict=True)

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        self._optimiser.zero_grad(set_to_none=True)
        loss = cross_entropy(self.module(images), labels)
        loss.backward()
        self._optimiser.step()
        self._schedule.step()
        return loss.detach()


def _rate_factor(step: int, steps: int, warm_up: float) -> float:
    """Return the learning rate of `step`, counted from 0, relative to the maximum."""
    rise = max(1, round(warm_up * steps))
    return min(1.0, (step + 1) / rise) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def _accuracy(module: nn.Sequential, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    import torch

    module.eval()
    right = torch.zeros((), dtype=torch.int64, device=pixels.device)
    with torch.no_grad():
        for images, expected in zip(
            pixels.split(EVALUATED_AT_ONCE), labels.split(EVALUATED_AT_ONCE), strict=True
        ):
            right += (module(images).argmax(dim=1) == expected).sum()
    return int(right) / len(pixels)


def _require_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ConvswapError(
            "training needs PyTorch, which is not installed: in convswap's folder, pip install '.[train]'"
        ) from error


def _choose_device(device: str | None) -> str:
    import torch

    if device is not None and device not in DEVICES:
        raise unknown_name("device", device, DEVICES)
    is_available = torch.cuda.is_available()
    if device == "cuda" and not is_available:
        why = "finds no card" if torch.version.cuda else "was built without CUDA"
        raise ConvswapError(f"--device cuda cannot be used: this PyTorch {why}; use --device cpu")
    return device or ("cuda" if is_available else "cpu")


@contextlib.contextmanager
def _deterministic_float32(device: str) -> Iterator[None]:
    """Compute in float32, not TF32, and with cuDNN's deterministic algorithms."""
    import torch

    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    except torch.OutOfMemoryError as error:
        raise ConvswapError(
            f"the memory of device {device} is too small for this training: use --device cpu, or give fewer "
            "--images"
        ) from error
