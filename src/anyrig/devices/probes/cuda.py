"""CUDA and ROCm GPUs: NVML lists the machine's GPUs, torch those that this process can use.

The two are matched by UUID. Their indices differ if ``CUDA_VISIBLE_DEVICES`` is set or the GPUs are
unequal, because CUDA lists the fastest first and NVML follows the PCI bus.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

from ...hardware import find_spec
from .. import nvml
from ..device import Device
from ..identity import bare_uuid, normalise_uuid
from ..process import DeviceProcess, process_name
from ..reading import Reading

# A process in the output of torch.cuda.list_gpu_processes; its MB are MiB.
_LISTED_PROCESS = re.compile(r"process +(\d+) uses +(\d+\.\d+) MB GPU memory")
_IN_MIG_MODE = "the GPU is in MIG mode; programs use its instances"


class CudaProbe:
    """The devices of `torch.cuda`, including ROCm, and the NVIDIA GPUs hidden from it."""

    kind = "cuda"

    def find(self) -> tuple[Device, ...]:
        gpus = nvml.gpus()
        by_bare_uuid = {bare_uuid(gpu.uuid): gpu for gpu in gpus if gpu.uuid}
        reachable, trouble = _reachable(by_bare_uuid)
        seen = {device.uuid for device in reachable}
        return (
            *reachable,
            *(_unreachable(gpu, trouble) for gpu in gpus if gpu.uuid not in seen),
        )

    def read(self, device: Device) -> Reading:
        moment = nvml.moment(device.uuid) if device.uuid is not None else None
        if moment is None:
            return _read_through_torch(device)
        own_bytes = _own_bytes(device, moment.processes)
        others_bytes = None
        if moment.used_bytes is not None and own_bytes is not None:
            others_bytes = max(0, moment.used_bytes - own_bytes)
        return Reading(
            device,
            free_bytes=moment.free_bytes,
            own_bytes=own_bytes,
            others_bytes=others_bytes,
            utilization=moment.utilization,
            temperature_celsius=moment.temperature_celsius,
            processes=moment.processes,
            error=moment.error,
        )

    def peak_bytes(self, device: Device) -> int | None:
        import torch

        return int(torch.cuda.max_memory_allocated(device.index))


def _reachable(gpus: Mapping[str, nvml.NvmlGpu]) -> tuple[list[Device], str]:
    """Return the devices that torch lists, and why it does not list the others."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        except RuntimeError as error:
            return [], str(error)
    devices = [_device(index, gpus) for index in range(count)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if count == 0 and torch.version.cuda is None and torch.version.hip is None:
        return devices, f"PyTorch {torch.__version__} is built without CUDA"
    if visible is not None:
        return devices, f"hidden by CUDA_VISIBLE_DEVICES={visible!r}"
    if caught:
        return devices, str(caught[-1].message)
    return devices, "PyTorch does not list it"


def _device(index: int, gpus: Mapping[str, nvml.NvmlGpu]) -> Device:
    import torch

    try:
        properties: Any = torch.cuda.get_device_properties(index)
    except (RuntimeError, AssertionError) as error:
        return Device(kind="cuda", index=index, name="unknown", error=str(error))
    # PyTorch writes the UUID of a MIG instance like that of a whole GPU, without either's prefix.
    gpu = gpus.get(bare_uuid(str(properties.uuid)))
    return Device(
        kind="cuda",
        index=index,
        name=properties.name,
        uuid=gpu.uuid if gpu else normalise_uuid(str(properties.uuid)),
        pci_bus_id=gpu.pci_bus_id if gpu else None,
        capability=(properties.major, properties.minor),
        total_bytes=properties.total_memory,
        spec=find_spec(properties.name),
        error=gpu.error if gpu else None,
    )


def _unreachable(gpu: nvml.NvmlGpu, trouble: str) -> Device:
    return Device(
        kind="cuda",
        index=None,
        name=gpu.name or "unknown",
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        capability=gpu.capability,
        total_bytes=gpu.total_bytes,
        spec=find_spec(gpu.name) if gpu.name else None,
        error=gpu.error or (_IN_MIG_MODE if gpu.mig_enabled else trouble),
    )


def _read_through_torch(device: Device) -> Reading:
    """Read a GPU that NVML does not know: ROCm, and GPUs without a driver library."""
    if device.index is None or device.error is not None:
        return Reading(device, error=device.error)
    import torch

    try:
        free_bytes, total_bytes = torch.cuda.mem_get_info(device.index)
    except RuntimeError as error:
        return Reading(device, error=str(error))
    own_bytes = torch.cuda.memory_reserved(device.index)
    return Reading(
        device,
        free_bytes=free_bytes,
        own_bytes=own_bytes,
        others_bytes=max(0, total_bytes - free_bytes - own_bytes),
        processes=_processes_through_torch(device.index),
    )


def _processes_through_torch(index: int) -> tuple[DeviceProcess, ...] | None:
    """Return the processes that ``torch.cuda.list_gpu_processes`` lists; None if it fails."""
    import torch

    try:
        text = torch.cuda.list_gpu_processes(index)
    except Exception:  # NVML and AMD SMI have exceptions of their own
        return None
    return read_processes(text)


def read_processes(text: str) -> tuple[DeviceProcess, ...] | None:
    """Return the processes in ``torch.cuda.list_gpu_processes``'s text; None if it lists none."""
    lines = text.splitlines()[1:]
    if lines == ["no processes are running"]:
        return ()
    found = [_LISTED_PROCESS.fullmatch(line) for line in lines]
    return (
        tuple(
            DeviceProcess(int(line[1]), process_name(int(line[1])), round(float(line[2]) * 2**20))
            for line in found
            if line is not None
        )
        or None
    )


def _own_bytes(device: Device, processes: tuple[DeviceProcess, ...] | None) -> int | None:
    if processes is None:
        return None
    own = [process for process in processes if process.pid == os.getpid()]
    if own:
        return own[0].used_bytes
    import torch

    # In a container NVML has another pid for this process; the allocator knows its own bytes.
    if device.index is not None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return int(torch.cuda.memory_reserved(device.index))
    return 0
