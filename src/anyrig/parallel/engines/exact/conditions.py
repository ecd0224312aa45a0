"""What makes a logical shard's computation the same on every rank, and what prevents that."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ....errors import SpreadError
from ...ranks.loaders.agreed_order import random_state


@contextmanager
def conditions_of_shard(device: torch.device, seed: int) -> Iterator[None]:
    """Draw random numbers from `seed`, and use deterministic kernels, within the block.

    The program's random numbers and settings are restored afterwards.
    """
    if device.type == "cpu":
        with random_state(seed):
            yield
        return
    strict = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    chooses = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # it chooses kernels by their time
    try:
        forked = torch.random.fork_rng([device], device_type=device.type)
        with forked, random_state(seed), torch.accelerator.device_index(device.index):
            torch.get_device_module(device).manual_seed(seed)
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        torch.backends.cudnn.benchmark = chooses


def fix_threads(device: torch.device) -> None:
    """Make this process compute with one thread: sums on the CPU depend on the thread count."""
    if device.type == "cpu":
        torch.set_num_threads(1)


def require_one_thread(device: torch.device) -> None:
    """Raise SpreadError if the number of threads was changed."""
    if device.type == "cpu" and torch.get_num_threads() != 1:
        raise SpreadError(
            f"torch.set_num_threads({torch.get_num_threads()}) was called after "
            "spread(plan=Exact(…)), and sums on the CPU depend on the number of threads; call "
            "torch.set_num_threads(1)"
        )


def describe_device(device: torch.device) -> str:
    """Return what kernels depend on: the device's name, or the instructions of the CPU."""
    if device.type == "cpu":
        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device)) if callable(name) else device.type


def require_no_batch_statistics(layers: Iterable[nn.Module]) -> None:
    """Raise SpreadError for layers whose output or state depends on how samples are grouped."""
    for layer in layers:
        takes = isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)
        learns = isinstance(layer, _NormBase) and layer.training and layer.track_running_stats
        if takes or learns:
            raise SpreadError(
                f"{type(layer).__name__} takes statistics of the samples that it sees at once, "
                "which with Exact are those of one logical shard, not of the batch. Use "
                "GroupNorm or LayerNorm, or freeze running statistics with layer.eval()"
            )


class WatchedBuffers:
    """Notices a forward that changes buffers, whose values would depend on the rank's samples."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = self._versions()

    def _versions(self) -> dict[str, tuple[Tensor, int]]:
        # Keep the tensors themselves: the address of a freed tensor may be used again.
        return {name: (buffer, _version(buffer)) for name, buffer in self._module.named_buffers()}

    def require_unchanged(self) -> None:
        """Raise SpreadError if a buffer was written or replaced."""
        changed = [
            name
            for name, (buffer, version) in self._versions().items()
            if name not in self._before
            or self._before[name][0] is not buffer
            or self._before[name][1] != version
        ]
        if changed:
            raise SpreadError(
                f"the forward changes the buffer {changed[0]!r}. With Exact each rank "
                "computes different logical shards, so its buffers would differ from other ranks'. "
                "Change buffers outside the forward, in the same way on every rank"
            )


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
