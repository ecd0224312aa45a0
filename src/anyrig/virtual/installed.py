"""Put a virtual rig into this process: from then on PyTorch has CUDA devices."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from ..errors import VirtualRigError
from .build import load_extension
from .operators import read_operators
from .rig import VirtualDevice, VirtualRig


@dataclass(frozen=True)
class Installation:
    """What is installed in this process."""

    rig: VirtualRig
    shape_only: bool
    assume_values: bool
    clock: bool


_lock = threading.Lock()
_installation: Installation | None = None


def installation() -> Installation | None:
    """Return what `install` put into this process, or None before it."""
    return _installation


def install(
    rig: VirtualRig | str,
    *,
    shape_only: bool = False,
    assume_values: bool = False,
    clock: bool = True,
) -> Installation:
    """Make the devices of `rig` the CUDA devices of this process, for the rest of its life.

    Call it before anything uses CUDA. A second call with the same arguments does nothing.

    Args:
        rig: the rig, or its text such as ``"4xA100-80GB"``.
        shape_only: hold no data and compute nothing: bytes, shapes and times are right, and what
            needs a value raises `ValueNeededError`.
        assume_values: with `shape_only`, take every value that is needed to be one.
        clock: keep the virtual time that events report; without it all work takes no time.

    Raises:
        VirtualRigError: another rig is installed, CUDA is in use already, or there is a real GPU.
        BuildError: the C++ part cannot be built here.
    """
    global _installation
    rig = VirtualRig.parse(rig) if isinstance(rig, str) else rig
    wanted = Installation(rig, shape_only, assume_values, clock)
    with _lock:
        if _installation is None:
            _refuse_real_devices()
            _install(wanted)
            _installation = wanted
        elif _installation != wanted:
            raise VirtualRigError(
                f"this process already has the virtual rig {_text(_installation)}, and a rig stays "
                f"until its process ends; start another process for {_text(wanted)}"
            )
    return _installation


def _install(wanted: Installation) -> None:
    from . import (
        attention_api,
        comm,
        cuda_api,
        memory_api,
        nccl,
        printing,
        rebinding,
        refused,
        runtime,
        sensors,
        settings_api,
        storage,
        streams,
        tensor_types,
    )

    if wanted.shape_only:
        # The shapes of what C++ has no Meta kernel for.
        import_module("torch._meta_registrations")

    core = load_extension()
    core.install(
        [_facts(core, device) for device in wanted.rig.devices],
        wanted.shape_only,
        wanted.assume_values,
        {
            operator.name: core.OperatorFacts(
                operator.has_cuda_kernel,
                operator.structured,
                operator.checks_devices,
                operator.container_keys,
            )
            for operator in read_operators()
        },
        printing.raise_value_needed,
    )
    core.set_clock_enabled(wanted.clock)
    for functions in (attention_api, cuda_api, memory_api, streams, comm, nccl, settings_api):
        rebinding.bind(functions.bindings(core))
    cuda_api.patch(core)
    streams.patch()
    runtime.patch(core)
    sensors.patch(core)
    refused.patch()
    storage.patch(core)
    tensor_types.patch()
    if wanted.shape_only:
        printing.patch()


def _facts(core: ModuleType, device: VirtualDevice) -> object:
    facts = core.DeviceFacts()
    facts.name = device.name
    facts.uuid = device.uuid
    facts.memory_bytes = device.memory_bytes
    facts.capability_major, facts.capability_minor = device.capability
    facts.multiprocessors = device.multiprocessors
    spec = device.rates
    rates = core.Rates()
    rates.flops_per_second = spec.flops_per_second.get("float32", 0.0)
    rates.half_flops_per_second = spec.strength
    rates.memory_bytes_per_second = spec.memory_bytes_per_second
    # Cards without a link of their own reach each other through the host's bus.
    rates.link_bytes_per_second = spec.link_bytes_per_second or spec.pcie_bytes_per_second
    rates.host_bytes_per_second = spec.pcie_bytes_per_second
    facts.rates = rates
    return facts


def _refuse_real_devices() -> None:
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized():
        raise VirtualRigError(
            "CUDA is in use already; install a virtual rig before the first use of CUDA"
        )
    if torch.cuda.is_available():
        names = ", ".join(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        )
        raise VirtualRigError(
            f"this machine has real CUDA devices ({names}), and virtual ones cannot stand beside "
            "them; hide them with CUDA_VISIBLE_DEVICES= in the environment, or use them"
        )


def _text(installed: Installation) -> str:
    modes = [", shape-only"] if installed.shape_only else []
    modes += [", assuming values"] if installed.assume_values else []
    modes += [] if installed.clock else [", without a clock"]
    return f"{installed.rig}{''.join(modes)}"
