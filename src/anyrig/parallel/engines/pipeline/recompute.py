"""Computing activations again in the backward pass, with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ....transfer.tree import map_leaves


def recomputed(
    function: Callable[[Any], Any],
    given: Any,
    device: torch.device,
    turn: AbstractContextManager[Any],
) -> Any:
    """Return ``function(given)``, whose activations are computed again in the backward pass.

    Both computations draw the same random numbers from the generators of `device` and the CPU, and
    get copies of the tensors in `given`, because `function` may change them in place.

    Autograd computes again in one thread per device. A thread holds the lock `turn` meanwhile,
    since the threads share the CPU's generator and the places of a module's tensors.
    """
    states: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def compute(value: Any) -> Any:
        if not states:
            states.append(_read_generators(device))
            return function(_copied(value))
        kinds = [] if device.type == "cpu" else [device]
        with turn, torch.random.fork_rng(kinds, device_type=device.type if kinds else "cuda"):
            on_host, on_device = states[0]
            torch.set_rng_state(on_host)
            if on_device is not None:
                torch.get_device_module(device).set_rng_state(on_device, device)
            return function(_copied(value))

    # PyTorch would restore only the generators of the devices of tensor arguments.
    return checkpoint(compute, given, use_reentrant=False, preserve_rng_state=False)


def _copied(value: Any) -> Any:
    return map_leaves(
        value, lambda leaf, _: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
    )


def _read_generators(device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    if device.type == "cpu":
        return torch.get_rng_state(), None
    return torch.get_rng_state(), torch.get_device_module(device).get_rng_state(device)
