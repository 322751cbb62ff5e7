"""A Ray cluster: a worker process for each of its cards, which runs functions of this package."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from convswap.errors import ConvswapError
from convswap.runtime.device import Device, choose_device, environment

# Ray reads these variables when it is imported. The expression matches every line that Ray would print.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}


class Worker:
    """A Ray actor: runs functions in a process of the cluster, two at a time."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return `function(*arguments)`."""
        return function(*arguments)


class Cluster:
    """A worker for each free card of a Ray cluster; without cards, or for the CPU, one for each node.

    `devices` are those of the workers. `device` and `environment` are the first's, with the names of all
    cards.
    """

    def __init__(self, ray: Any, device: str | None) -> None:
        """Start the workers; raise ConvswapError if they lack the device, or differ from this machine."""
        self.ray = ray
        cards = 0 if device == "cpu" else int(ray.available_resources().get("GPU", 0))
        if device == "cuda" and not cards:
            raise ConvswapError("the Ray cluster has no free card; give --ray the address of one with cards")
        self._worker = ray.remote(
            num_cpus=0, num_gpus=min(cards, 1), scheduling_strategy="SPREAD", max_concurrency=2
        )(Worker)
        nodes = sum(node["Alive"] for node in ray.nodes())
        self.workers = [self._worker.remote() for _ in range(cards or nodes)]
        self._starting: dict[Any, Any] = {}
        pending = [worker.run.remote(_facts, device) for worker in self.workers]
        facts = [self.result(each) for each in pending]
        self.devices: list[Device] = [each for each, _ in facts]
        self.device, self.environment = facts[0]
        here = environment(Device("cpu", ""))
        for each, versions in facts:
            for name in ("convswap", "onnxruntime"):
                if versions[name] != here[name]:
                    raise ConvswapError(
                        f"the Ray cluster has {name} {versions[name]}, this machine {here[name]}; install one"
                    )
            if cards and each.card is None:
                raise ConvswapError(
                    f"a card of the Ray cluster cannot be used: {each.reason}; or give --device cpu"
                )
        if self.device.card is not None:
            names = ", ".join(sorted({each.title for each in self.devices}))
            self.device = replace(self.device, card={**self.device.card, "name": names})
            self.environment["card"] = names

    def result(self, reference: Any) -> Any:
        """Return the result of a call; raise what the call raised, or Ray's error."""
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def restart(self, worker: Any) -> None:
        """Start another worker in place of one whose process ended; its card may be lost as well."""
        if worker in self.workers:
            self.workers.remove(worker)
            started = self._worker.remote()
            self._starting[started.run.remote(_facts, None)] = started

    def running(self) -> list[Any]:
        """Return the workers that have started, after waiting for one if there is none."""
        if self._starting:
            done, _ = self.ray.wait(list(self._starting), timeout=0 if self.workers else None)
            self.workers += [self._starting.pop(each) for each in done]
        return self.workers

    def kinds(self) -> dict[str, Any]:
        """Return the first worker of each kind of card, by name and compute capability."""
        kinds: dict[str, Any] = {}
        for device, worker in zip(self.devices, self.workers, strict=True):
            capability = (device.card or {})["compute_capability"] / 10
            kinds.setdefault(f"{device.title} ({capability})", worker)
        return kinds


def last_line(error: Exception) -> str:
    """Return the last line of an error's message, which names the cause in Ray's errors."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return text.splitlines()[-1].rstrip(".")


def _facts(device: str | None) -> tuple[Device, dict[str, str | None]]:
    chosen = choose_device(device)
    return chosen, environment(chosen)


@contextmanager
def connected(address: str, device: str | None = None) -> Iterator[Cluster]:
    """Connect to the Ray cluster at `address`; "local" starts one on this machine, until the context ends.

    Raises:
        ConvswapError: Ray is missing, nothing answers at `address`, or a process of the cluster failed.
    """
    os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})
    try:
        import ray
    except ImportError:
        raise ConvswapError("--ray needs Ray, which is missing: pip install 'convswap[ray]'") from None
    dashboard = False if address == "local" else None
    try:
        # Ray retries for minutes and then ends this process.
        if match := re.fullmatch(r"(?:ray://)?(.+):(\d+)", address):
            socket.create_connection((match[1], int(match[2])), timeout=5).close()
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard
        )
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ConvswapError(
            f"cannot connect to Ray at {address!r}: {last_line(error)}; give the address of a cluster's "
            "head, such as 10.0.0.1:6379, or local"
        ) from error
    try:
        yield Cluster(ray, device)
    except ray.exceptions.RayError as error:
        raise ConvswapError(f"a process of the Ray cluster failed: {last_line(error)}") from error
    finally:
        ray.shutdown()
