"""How the caller computes: modes of PyTorch and random numbers, which each worker takes over."""

from __future__ import annotations

import hashlib
import random
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch as dispatch
from torch.utils._device import DeviceContext

from ....errors import SpreadError


@dataclass(frozen=True)
class Settings:
    """The settings of the caller's thread, for one call.

    PyTorch's random numbers of a worker are derived from the state of the caller's generator and
    the worker's number: dropout differs from part to part, a run is repeatable, and the caller
    draws what one device would draw. Python's and numpy's random numbers, which decide what a
    forward does with a whole batch, are those of the caller.
    """

    learns: bool
    inference: bool
    autocast: tuple[bool, torch.dtype, bool]
    default_dtype: torch.dtype
    deterministic: tuple[bool, bool]
    matmul_precision: str
    threads: int
    seed: bytes
    python_random: tuple[int, bytes, float | None]
    numpy_random: Any

    @classmethod
    def read(cls) -> Settings:
        """Return the present settings; raise SpreadError for a mode that no other process has."""
        _refuse_modes()
        numpy = sys.modules.get("numpy.random")
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            (
                torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
                torch.is_autocast_cache_enabled(),
            ),
            torch.get_default_dtype(),
            _deterministic(),
            torch.get_float32_matmul_precision(),
            torch.get_num_threads(),
            hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8).digest(),
            _packed(random.getstate()),
            None if numpy is None else numpy.get_state(),
        )

    @contextmanager
    def applied(self, worker: int) -> Iterator[None]:
        """Compute in these settings, in worker number `worker`."""
        torch.set_default_dtype(self.default_dtype)
        if _deterministic() != self.deterministic:  # as setting it imports torch._inductor
            always, warns = self.deterministic
            torch.use_deterministic_algorithms(always, warn_only=warns)
        torch.set_float32_matmul_precision(self.matmul_precision)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        seed = hashlib.blake2b(self.seed, digest_size=8, salt=worker.to_bytes(4, "little")).digest()
        # The generator of the CPU: torch.manual_seed looks for those of accelerators, in 0.3 ms.
        torch.default_generator.manual_seed(int.from_bytes(seed, "little") >> 1)
        version, numbers, gauss = self.python_random
        random.setstate((version, tuple(array("L", numbers)), gauss))
        if self.numpy_random is not None:
            import numpy

            numpy.random.set_state(self.numpy_random)
        enabled, dtype, cache = self.autocast
        with (
            torch.inference_mode(self.inference),
            torch.set_grad_enabled(self.learns),
            torch.autocast("cpu", dtype, enabled, cache),
        ):
            yield


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _packed(state: Any) -> tuple[int, bytes, float | None]:
    """Return a state of `random` with its numbers in one piece, which is faster to send."""
    version, numbers, gauss = state
    return version, array("L", numbers).tobytes(), gauss


def _refuse_modes() -> None:
    modes: list[Any] = [
        *_get_current_function_mode_stack(),  # type: ignore[no-untyped-call]
        *dispatch._get_current_dispatch_mode_stack(),
    ]
    cpu = torch.device("cpu")
    found = [
        type(mode).__name__
        for mode in modes
        if not (isinstance(mode, DeviceContext) and mode.device == cpu)
    ]
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    if hooks and hooks[0].__module__ != "torch.utils.checkpoint":
        found.append("saved_tensors_hooks")
    if found:
        raise SpreadError(
            f"the model is called within {found[0]}, which would see what this process computes "
            "and nothing of the other processes; use the threads of plan=Replicas()"
        )
