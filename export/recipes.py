"""How each network is trained: what `convswap train NETWORK` does unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from convswap.models import Network


@dataclass(frozen=True)
class Recipe:
    """The numbers of a training run.

    The learning rate rises in a line to `learning_rate` through the first `warm_up` of the steps and falls to
    zero along half a cosine; in the last `rounded` of the epochs the large layers compute with the 4 bits
    that they will be stored in. `training_images` limits how many images are learned from, None takes all.
    """

    epochs: int = 24
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    warm_up: float = 0.1
    rounded: float = 1 / 3
    training_images: int | None = None


_RECIPES = {
    # So few images that it stays about as weak as the course's: 0.63 of the images held out.
    "ece408-2017-low": Recipe(epochs=30, batch=8, training_images=35),
}


def recipe_for(network: Network) -> Recipe:
    """Return how `network` is trained."""
    return _RECIPES.get(network.name, Recipe())
