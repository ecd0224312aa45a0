"""The memory of a GPU that the CUDA driver and NCCL take, outside PyTorch's allocator."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from importlib import resources
from typing import Any

from .spec import Spec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MIB = 2**20
_OTHERWISE = "otherwise"


@dataclass(frozen=True)
class DriverMemory:
    """What one process takes on one GPU.

    Attributes:
        context_bytes: the CUDA context.
        cublas_handle_bytes: a handle of cuBLAS; there is one for each thread that multiplies
            matrices.
        connection_bytes: NCCL's buffers for one channel to one other rank.
        ring_channels: NCCL's channels of a collective.
        message_channels: NCCL's channels to one rank for sends, receives and all-to-all.
        sources: the source of each figure.
    """

    context_bytes: int
    cublas_handle_bytes: int
    connection_bytes: int
    ring_channels: int
    message_channels: int
    sources: tuple[str, ...]


def driver_memory_of(spec: Spec) -> DriverMemory:
    """Return what a process takes on a GPU with the facts `spec`; see `driver_memory.toml`."""
    by_link = "pcie" if spec.link == "pcie" else spec.architecture
    context = _entry("context", spec.key, spec.architecture)
    handle = _entry("cublas_handle", spec.key, spec.architecture)
    connection = _entry("connection")
    rings, messages = _entry("ring_channels", by_link), _entry("message_channels", by_link)
    return DriverMemory(
        context_bytes=context["mib"] * _MIB,
        cublas_handle_bytes=handle["mib"] * _MIB,
        connection_bytes=connection["mib"] * _MIB,
        ring_channels=rings["channels"],
        message_channels=messages["channels"],
        sources=tuple(entry["source"] for entry in (context, handle, connection, rings, messages)),
    )


def _entry(table: str, *names: str) -> dict[str, Any]:
    """Return the entry of the first of `names` that the table has, or the entry for other names."""
    entries = _tables()[table]
    return next(entries[name] for name in (*names, _OTHERWISE) if name in entries)


@functools.cache
def _tables() -> dict[str, dict[str, dict[str, Any]]]:
    text = resources.files(__package__).joinpath("driver_memory.toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(text)
    return tables
