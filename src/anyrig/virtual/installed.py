"""Installation of a virtual rig in this process: PyTorch then has CUDA devices."""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import AnyrigError, BuildError, VirtualRigError
from ..hardware import driver_memory_of
from ..units import format_seconds
from . import build_choice
from .build import load_extension
from .clock_settings import ClockSettings
from .gpu_facts import gpu_facts_of
from .inheritance import VARIABLE, Inheritance
from .lone_rank import check_lone_rank
from .nodes import node_of_process
from .operators import read_operators
from .rig import VirtualDevice, VirtualRig
from .torch_build import TorchBuild
from .torch_version import check_torch


@dataclass(frozen=True)
class Installation:
    """A virtual rig and the options it is installed with; the attributes are those of `install`."""

    rig: VirtualRig
    shape_only: bool
    assume_values: bool
    clock: bool
    lone_rank: bool = False
    without_kernels: bool = False
    host_launch_seconds: float | None = field(default=None, repr=False)
    libraries: str | None = field(default=None, repr=False)

    @property
    def settings(self) -> ClockSettings:
        """What the user says about the clock."""
        return ClockSettings(self.host_launch_seconds, self.libraries)

    def arguments(self) -> dict[str, object]:
        """Return the arguments of `install` for this installation, with the rig as text."""
        return {**vars(self), "rig": str(self.rig)}


_lock = threading.Lock()
_installation: Installation | None = None
_inheritance: Inheritance | None = None


def installation() -> Installation | None:
    """Return the installation of this process, or None before `install`."""
    return _installation


def install(
    rig: VirtualRig | str,
    *,
    shape_only: bool = False,
    assume_values: bool = False,
    clock: bool = True,
    children: bool = True,
    lone_rank: bool = False,
    without_kernels: bool = False,
    host_launch_seconds: float | None = None,
    libraries: str | None = None,
) -> Installation:
    """Make the devices of `rig` the CUDA devices of this process, for the rest of its life.

    Call `install` before anything uses CUDA. A repeated call with the same arguments has
    no effect. The same holds in a process that inherited the same rig.

    Args:
        rig: the rig, or its text such as ``"4xA100-80GB"``.
        shape_only: hold no data and compute nothing. Bytes, shapes and times stay correct, and an
            operation that needs a value raises `ValueNeededError`.
        assume_values: with `shape_only`, assume that every value a program reads is 1.
        clock: keep the virtual time that events report. Without the clock, work takes no time.
        children: give the rig to the Python processes that this process starts from now on, through
            environment variables. All of them share the memory of the GPUs.
        lone_rank: with `shape_only`, this process is rank 0 of a program with a rank on each GPU of
            the rig, and no other rank runs: all are assumed to be alike.
        without_kernels: accept GPUs for which this PyTorch has no kernels, such as a V100
            with a build for CUDA 13, and work as if it had (`build_choice`).
        host_launch_seconds: how long the host takes for an operator of one kernel, on the clock;
            None for what is assumed.
        libraries: the versions by whose kernels to time, such as ``"torch=1.7"``.

    Raises:
        VirtualRigError: another rig is installed, CUDA is already in use, a real GPU is present,
            this PyTorch cannot have virtual GPUs or has no kernels for them, the processes cannot
            share the GPUs, or one rank cannot stand for all.
        BuildError: the C++ backend cannot be built.
    """
    # Not under the lock: in a process that inherits a rig, importing torch installs the rig.
    import_module("torch")
    rig = VirtualRig.parse(rig) if isinstance(rig, str) else rig
    wanted = Installation(
        rig,
        shape_only,
        assume_values,
        clock,
        lone_rank,
        without_kernels,
        host_launch_seconds,
        libraries,
    )
    return _install_once(wanted, children=children, reports_build=True)


def _install_once(wanted: Installation, *, children: bool, reports_build: bool) -> Installation:
    """Install `wanted`, or check that it is installed.

    With `reports_build`, say why a CPU build passes for another CUDA build than the default.
    """
    global _installation, _inheritance
    if wanted.lone_rank:
        check_lone_rank(wanted.rig, shape_only=wanted.shape_only)
    with _lock:
        if _installation is None:
            check_torch()
            _refuse_real_devices()
            build, reason = build_choice.choose_build(
                wanted.rig, without_kernels=wanted.without_kernels
            )
            if reports_build:
                build_choice.report(reason)
            _inheritance = _inheritance_of(wanted)
            _install(wanted, _inheritance, build)
            _installation = wanted
            if children:
                _inheritance.hand_down()
        elif _installation != wanted:
            raise VirtualRigError(
                f"this process already has the virtual rig {_text(_installation)}, and a rig stays "
                f"until its process ends; start another process for {_text(wanted)}, without "
                f"{VARIABLE} in its environment"
            )
    return _installation


def install_inherited() -> None:
    """Install the rig that this process inherited, if there is one.

    If the installation fails, report the error and end the process with the error's exit status:
    without the GPUs of the rehearsal, the program would take a different path.
    """
    try:
        inherited = Inheritance.read()
        if inherited is None:
            return
        names = {field.name for field in fields(Installation)}
        if inherited.arguments.keys() != names:
            raise VirtualRigError(
                f"{VARIABLE} has the options {', '.join(inherited.arguments)}, and this version of "
                f"anyrig expects {', '.join(sorted(names))}; use one version of anyrig in all "
                "processes of a rehearsal"
            )
        import_module("torch")
        arguments: dict[str, Any] = {
            **inherited.arguments,
            "rig": VirtualRig.parse(str(inherited.arguments["rig"])),
        }
        # The process that started the rehearsal has reported the build.
        _install_once(Installation(**arguments), children=True, reports_build=False)
    except AnyrigError as error:
        sys.stderr.write(f"anyrig: error: {error}\n")
        raise SystemExit(error.exit_code) from None


def hand_down_before_install(wanted: Installation) -> Inheritance | None:
    """Give `wanted` to the processes that this process starts, before this process installs it.

    Return what the processes inherit, or None if this process already has a rig.
    """
    with _lock:
        if _installation is not None:
            return None
        new = _new_inheritance(wanted)
        new.hand_down()
        with suppress(BuildError):  # not an error if the program uses neither NVML nor torch
            new.load_nvml()
        return new


def inheritance() -> Inheritance | None:
    """Return what a process needs to inherit this process's rig, or None without a rig."""
    return _inheritance


def leave_gpus() -> None:
    """Stop sharing the GPUs of the rig: the last process removes the folder of the rehearsal.

    For a process that ends without C++'s exit handlers, which do the same. Nothing may use the GPUs
    afterwards.
    """
    if _installation is not None and _inheritance is not None:
        from .rehearsal_folder import remove_unless_used

        remove_unless_used(Path(_inheritance.gpus))


def write_own_files() -> AbstractContextManager[None]:
    """Return a context in which this thread overwrites files of any age.

    A shape-only rehearsal keeps old files from its script, and not from its own reports.
    """
    return nullcontext() if _inheritance is None else _inheritance.scratch.directly()


def _inheritance_of(wanted: Installation) -> Inheritance:
    """Return what this process inherited if it matches `wanted`, else a new `Inheritance`."""
    inherited = Inheritance.read()
    if inherited is not None and inherited.arguments == wanted.arguments():
        return inherited
    return _new_inheritance(wanted)


def _new_inheritance(wanted: Installation) -> Inheritance:
    from .rehearsal_folder import new_rehearsal_folder  # fcntl does not exist on Windows

    return Inheritance(wanted.arguments(), str(new_rehearsal_folder()))


def _install(wanted: Installation, inherited: Inheritance, build: TorchBuild) -> None:
    from . import (
        attention_api,
        backward_engine,
        comm,
        compile_api,
        cuda_api,
        extras,
        graphs_api,
        host_parameters,
        libraries,
        memory_api,
        nccl,
        printing,
        process_group,
        profiler_api,
        rebinding,
        redirected_files,
        refused,
        refused_writes,
        runtime,
        sensors,
        settings_api,
        shared_tensors,
        storage,
        streams,
        tensor_files,
        tensor_types,
        truncated_normal,
        versions_api,
    )

    if wanted.shape_only:
        # Shape functions of the operators that have no Meta kernel in C++.
        import_module("torch._meta_registrations")

    # First the steps that may have to build: a failure then leaves the process unchanged.
    core = load_extension()
    inherited.load_nvml()
    node = node_of_process(wanted.rig)
    try:
        core.share_gpus(inherited.gpus, len(wanted.rig.devices))
    except RuntimeError as error:
        raise VirtualRigError(f"{error}; set TMPDIR to a writable folder") from None
    core.install(
        [
            _facts(core, device, position, wanted)
            for position, device in enumerate(wanted.rig.devices)
        ],
        node,
        wanted.shape_only,
        wanted.assume_values,
        {
            operator.name: core.OperatorFacts(
                operator.has_cuda_kernel,
                operator.structured,
                operator.is_iterator,
                operator.checks_devices,
                operator.container_keys,
            )
            for operator in read_operators()
        },
        partial(printing.raise_value_needed, is_alone=wanted.lone_rank),
    )
    core.set_clock_enabled(wanted.clock)
    refused.patch()
    for functions in (
        attention_api,
        cuda_api,
        graphs_api,
        memory_api,
        streams,
        comm,
        nccl,
        settings_api,
    ):
        rebinding.bind(functions.bindings(core))
    rebinding.bind(versions_api.bindings(build))
    versions_api.patch(core, build, without_kernels=wanted.without_kernels)
    cuda_api.patch(core)
    streams.patch()
    graphs_api.patch()
    runtime.patch(core)
    backward_engine.patch(core)
    profiler_api.patch()
    sensors.patch(core)
    assumed_ranks = len(wanted.rig.devices) if wanted.lone_rank else None
    process_group.patch(core, assumed_ranks=assumed_ranks)
    storage.patch(core)
    shared_tensors.patch(core)
    tensor_types.patch()
    compile_api.patch()
    libraries.patch(core)
    extras.patch(core)
    if wanted.shape_only:
        printing.patch()
        truncated_normal.patch()
        if wanted.assume_values:
            host_parameters.patch()
        redirected_files.redirect(inherited.scratch)
        tensor_files.redirect(inherited.scratch)
        refused_writes.refuse_writes(inherited.scratch)


def _facts(core: ModuleType, device: VirtualDevice, position: int, wanted: Installation) -> object:
    facts = core.DeviceFacts()
    facts.name = device.name
    facts.uuid = device.uuid
    facts.memory_bytes = device.memory_bytes
    facts.capability_major, facts.capability_minor = device.capability
    facts.multiprocessors = device.multiprocessors
    facts.node = device.node
    facts.position = position
    facts.gpu = gpu_facts_of(
        core, device.rates, wanted.rig.network_bytes_per_second, wanted.settings
    )
    if device.spec is not None:
        taken = driver_memory_of(device.spec)
        facts.driver_memory.context_bytes = taken.context_bytes
        facts.driver_memory.cublas_handle_bytes = taken.cublas_handle_bytes
        facts.driver_memory.connection_bytes = taken.connection_bytes
        facts.driver_memory.ring_channels = taken.ring_channels
        facts.driver_memory.message_channels = taken.message_channels
    return facts


def _refuse_real_devices() -> None:
    import torch

    cuda: Any = torch.cuda
    if cuda.is_initialized():
        raise VirtualRigError(
            "CUDA is already in use; install a virtual rig before the first use of CUDA"
        )
    # The call behind torch.cuda.is_available, which a CPU build does not have. is_available may ask
    # NVML instead, and in a process of a rehearsal NVML already reports the virtual GPUs.
    count = getattr(torch._C, "_cuda_getDeviceCount", None)
    if count is not None and count() > 0:
        names = ", ".join(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        )
        raise VirtualRigError(
            f"this machine has real CUDA devices ({names}), and a process cannot have real and "
            "virtual ones; hide the real ones with CUDA_VISIBLE_DEVICES= in the environment, or "
            "use them"
        )


def _text(installed: Installation) -> str:
    modes = [", shape-only"] if installed.shape_only else []
    modes += [", assuming values"] if installed.assume_values else []
    modes += [] if installed.clock else [", without a clock"]
    modes += [", rank 0 alone"] if installed.lone_rank else []
    modes += [", allowing missing kernels"] if installed.without_kernels else []
    launch, libraries = installed.host_launch_seconds, installed.libraries
    modes += [] if launch is None else [f", {format_seconds(launch)} for a launch"]
    modes += [] if libraries is None else [f", timed as {libraries}"]
    return f"{installed.rig}{''.join(modes)}"
