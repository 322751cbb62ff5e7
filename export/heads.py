"""Makes the fitted last layers in models/weights.

From the repository, with Fashion-MNIST where convswap finds it:

python -m convswap.export.heads --output models/weights [NETWORK ...]
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import numpy as np
from convswap import datasets
from convswap.errors import ConvswapError
from convswap.export.fitting import fit_to
from convswap.models import NETWORKS, Network, find, seeded_weights
from convswap.models.initialisation import digest


def fit_head(network: Network, threads: int = 0) -> bytes:
    """Return the content of models/weights/<network>.npz: the last layer fitted to Fashion-MNIST.

    Its entry `made` is JSON: the command, the data, the images fitted and held out, λ, the scale of the
    logits, the held-out accuracy, and the digest of the seeded weights that the layer belongs to.
    """
    labelled = datasets.load("fashion-mnist", split="train", image_size=network.image_size)
    weights = seeded_weights(network)
    fit = fit_to(network, weights, labelled, threads=threads)
    made = {
        "command": f"python -m convswap.export.heads --output models/weights {network.name}",
        "data": "fashion-mnist, training images",
        "fitted_images": fit.fitted_images,
        "held_out_images": len(labelled.images) // 10,
        "held_out_accuracy": round(fit.held_out_accuracy, 4),
        "regularisation": fit.regularisation,
        "logit_scale": fit.logit_scale,
        "seeded_weights_sha256": digest(weights),
    }
    content = io.BytesIO()
    np.savez(content, weight=fit.weight, bias=fit.bias, made=json.dumps(made))
    return content.getvalue()


def main() -> int:
    """Fit the named networks, or all, write the files, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m convswap.export.heads", description=__doc__.splitlines()[0]
    )
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="default: all")
    parser.add_argument("--output", type=Path, required=True, help="folder for the .npz files")
    parser.add_argument("--threads", type=int, default=0, help="processor threads; default: all")
    arguments = parser.parse_args()
    try:
        for name in arguments.networks or NETWORKS:
            network = find(name)
            part = arguments.output / f"{name}.npz.part"
            part.write_bytes(fit_head(network, arguments.threads))
            part.replace(part.with_suffix(""))
            print(f"{network.name}: written")
    except (ConvswapError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
