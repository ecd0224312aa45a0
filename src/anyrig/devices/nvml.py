"""Facts and state of NVIDIA GPUs, from NVML and without starting CUDA.

NVML lists every GPU of the machine, whatever `CUDA_VISIBLE_DEVICES` is, in the order of the PCI
bus. CUDA may number them differently, so GPUs are identified by UUID, never by index. A GPU that
does not answer has an `error`; a quantity that a GPU does not report is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .identity import bare_uuid, normalise_pci_bus_id, normalise_uuid
from .nvml_link import NvmlLink, link_between
from .nvml_session import (
    UNKNOWN_ERROR,
    NvmlUnavailableError,
    Questions,
    Session,
    session,
    words_for,
)
from .process import DeviceProcess, process_name

__all__ = [
    "NvmlGpu",
    "NvmlLink",
    "NvmlMoment",
    "gpus",
    "link",
    "moment",
    "session",
    "unavailable_reason",
]

_TEMPERATURE_OF_GPU = 0  # NVML_TEMPERATURE_GPU
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: its "used" leaves out what the driver keeps for itself
_NOT_AVAILABLE = frozenset({2**32 - 1, 2**64 - 1})  # NVML_VALUE_NOT_AVAILABLE, by width
_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


@dataclass(frozen=True)
class NvmlGpu:
    """One GPU or MIG instance: the facts that do not change while the driver is loaded.

    Attributes:
        uuid: ``"GPU-…"``, or ``"MIG-…"`` for an instance; None if the GPU does not answer.
        pci_bus_id: the PCI address, such as ``"0000:3b:00.0"``; an instance has its GPU's address.
        name: the driver's name for it.
        total_bytes: the size of the memory; None for chips that share the host's memory.
        capability: CUDA compute capability ``(major, minor)``.
        error: the GPU's error, and what to do; None if it works.
        parent_uuid: the GPU that an instance is part of; None for a whole GPU.
        mig_enabled: whether a whole GPU is in MIG mode, in which CUDA runs only in its instances.
    """

    uuid: str | None
    pci_bus_id: str | None
    name: str | None
    total_bytes: int | None
    capability: tuple[int, int] | None
    error: str | None
    parent_uuid: str | None = None
    mig_enabled: bool = False


@dataclass(frozen=True)
class NvmlMoment:
    """The state of a GPU at one moment.

    Attributes:
        free_bytes: the free memory.
        used_bytes: the memory of all processes together, without memory reserved by the driver.
        utilization: 0 to 1, the part of the last sample period (a sixth of a second to a second)
            in which a kernel ran; None for MIG instances.
        temperature_celsius: the temperature of the chip.
        processes: the processes that use the GPU, by pid; None if the driver does not list them.
        error: the GPU's error, and what to do; None if it answered.
    """

    free_bytes: int | None = None
    used_bytes: int | None = None
    utilization: float | None = None
    temperature_celsius: int | None = None
    processes: tuple[DeviceProcess, ...] | None = None
    error: str | None = None


@dataclass(frozen=True)
class _Handle:
    """The handles of a GPU or instance in an open session: its own, and its whole GPU's."""

    own: Any
    whole: Any

    @property
    def is_instance(self) -> bool:
        return self.own is not self.whole


def unavailable_reason() -> str | None:
    """Return why NVML cannot be used and what to do, or None if it can."""
    try:
        with session():
            return None
    except NvmlUnavailableError as unavailable:
        return str(unavailable)


def gpus() -> tuple[NvmlGpu, ...]:
    """Return every GPU in the order of the PCI bus, each followed by its MIG instances.

    Empty if NVML cannot be used; `unavailable_reason` says why.
    """
    try:
        with session() as opened:
            return tuple(gpu for gpu, _ in _walk(opened))
    except NvmlUnavailableError:
        return ()


def moment(uuid: str) -> NvmlMoment | None:
    """Return the state of the GPU `uuid`, or None if no driver knows the GPU.

    If the GPU or the driver no longer answers, the result has that error. The UUID may be
    PyTorch's, without a prefix.
    """
    try:
        with session() as opened:
            handle = _find(opened, uuid)
            if handle is not None:
                return _moment(opened, handle)
            # A lost GPU no longer reports its UUID; it may be this one.
            return NvmlMoment(error="; ".join(opened.silent)) if opened.silent else None
    except NvmlUnavailableError as unavailable:
        return NvmlMoment(error=str(unavailable)) if unavailable.driver_present else None


def link(uuid_a: str, uuid_b: str) -> NvmlLink | None:
    """Return the fastest path between two GPUs; None if they are the same or one is unknown.

    MIG instances have no NVLink: their path is PCIe.
    """
    try:
        with session() as opened:
            a, b = _find(opened, uuid_a), _find(opened, uuid_b)
            if a is None or b is None or a is b:
                return None
            return link_between(
                opened, a.whole, b.whole, allow_nvlink=not (a.is_instance or b.is_instance)
            )
    except NvmlUnavailableError:
        return None


def _walk(opened: Session) -> Iterator[tuple[NvmlGpu, _Handle | None]]:
    """Yield every GPU and instance with its handle.

    GPUs are opened by index, because `nvmlDeviceGetHandleByUUID` fails for a working GPU if another
    GPU is lost.
    """
    try:
        count = opened.call("nvmlDeviceGetCount")
    except opened.nvml.NVMLError as error:
        raise NvmlUnavailableError(words_for(error), driver_present=True) from error
    for index in range(count):
        try:
            own = opened.call("nvmlDeviceGetHandleByIndex", index)
        except opened.nvml.NVMLError as error:
            yield NvmlGpu(None, None, None, None, None, words_for(error)), None
            continue
        gpu = _gpu(opened, _Handle(own, own))
        yield gpu, _Handle(own, own)
        if gpu.mig_enabled:
            yield from _instances(opened, gpu, own)


def _instances(
    opened: Session, parent: NvmlGpu, whole: Any
) -> Iterator[tuple[NvmlGpu, _Handle | None]]:
    questions = Questions(opened)
    for index in range(questions.ask("nvmlDeviceGetMaxMigDeviceCount", whole) or 0):
        own = questions.ask("nvmlDeviceGetMigDeviceHandleByIndex", whole, index)
        if own is not None:  # an index without an instance is "not found"
            handle = _Handle(own, whole)
            yield _gpu(opened, handle, parent.uuid), handle


def _gpu(opened: Session, handle: _Handle, parent_uuid: str | None = None) -> NvmlGpu:
    questions = Questions(opened)
    uuid = questions.ask("nvmlDeviceGetUUID", handle.own)
    pci = questions.ask("nvmlDeviceGetPciInfo", handle.whole)
    name = questions.ask("nvmlDeviceGetName", handle.own)
    memory = _memory(questions, handle)
    capability = questions.ask("nvmlDeviceGetCudaComputeCapability", handle.whole)
    mig_mode = None if handle.is_instance else questions.ask("nvmlDeviceGetMigMode", handle.own)
    return NvmlGpu(
        uuid=None if uuid is None else normalise_uuid(uuid),
        pci_bus_id=None if pci is None else normalise_pci_bus_id(pci.busId),
        name=name,
        total_bytes=None if memory is None else _known(memory.total),
        capability=None if capability is None else (capability[0], capability[1]),
        error=questions.error,
        parent_uuid=parent_uuid,
        mig_enabled=mig_mode is not None and mig_mode[0] == 1,  # [current, after the next reset]
    )


def _find(opened: Session, uuid: str) -> _Handle | None:
    if opened.handles is None:
        walked = list(_walk(opened))
        opened.silent = [gpu.error for gpu, _ in walked if gpu.uuid is None and gpu.error]
        opened.handles = {bare_uuid(gpu.uuid): handle for gpu, handle in walked if gpu.uuid}
    found: _Handle | None = opened.handles.get(bare_uuid(uuid))
    return found


def _moment(opened: Session, handle: _Handle) -> NvmlMoment:
    questions = Questions(opened)
    memory = _memory(questions, handle)
    rates = questions.ask("nvmlDeviceGetUtilizationRates", handle.own)
    busy_percent = None if rates is None else _known(rates.gpu)
    temperature = questions.ask("nvmlDeviceGetTemperature", handle.whole, _TEMPERATURE_OF_GPU)
    return NvmlMoment(
        free_bytes=None if memory is None else _known(memory.free),
        used_bytes=None if memory is None else _known(memory.used),
        utilization=None if busy_percent is None else busy_percent / 100,
        temperature_celsius=None if temperature is None else _known(temperature),
        processes=_processes(questions, handle),
        error=questions.error,
    )


def _memory(questions: Questions, handle: _Handle) -> Any:
    memory = questions.ask("nvmlDeviceGetMemoryInfo", handle.own, _MEMORY_V2)
    if memory is None:  # drivers before R510
        memory = questions.ask("nvmlDeviceGetMemoryInfo", handle.own)
    return memory


def _processes(questions: Questions, handle: _Handle) -> tuple[DeviceProcess, ...] | None:
    """Return all processes, each once; NVML has separate lists for compute and graphics."""
    used_bytes: dict[int, int | None] = {}
    listed = False
    for function in _PROCESS_LISTS:
        # Under WSL, NVML reports an unknown error, which means only that there is no list.
        ignore = frozenset({UNKNOWN_ERROR})
        found = questions.ask(function, handle.own, ignore=ignore)
        if found is None:  # drivers before R510
            found = questions.ask(function + "_v2", handle.own, ignore=ignore)
        if found is None:
            continue
        listed = True
        for process in found:
            amount = _known(process.usedGpuMemory)
            known = used_bytes.get(process.pid)
            used_bytes[process.pid] = amount if known is None else max(known, amount or 0)
    if not listed:
        return None
    return tuple(
        DeviceProcess(pid, process_name(pid), amount) for pid, amount in sorted(used_bytes.items())
    )


def _known(value: int | None) -> int | None:
    return None if value is None or value in _NOT_AVAILABLE else int(value)
