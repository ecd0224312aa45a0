"""CUDA tensors that `torch.multiprocessing` sends to other processes of a rehearsal.

PyTorch's own `torch.multiprocessing.reductions` asks storages for a handle and makes storages of
handles; the functions here do both for virtual devices. What a handle names is in
`csrc/memory/shared_memory.h`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

# The arguments of a storage's rebuilding in another process, in PyTorch's order: device, handle,
# bytes, offset in bytes, counter's handle and offset, event's handle, whether to wait for it.
_Sent = tuple[int, "bytes | None", int, int, "bytes | None", int, "bytes | None", bool]


def patch(core: ModuleType) -> None:
    """Teach `torch.UntypedStorage` to send and receive memory of CUDA devices."""
    storage: Any = torch.UntypedStorage

    def share(self: Any) -> _Sent:
        if self.device.type != "cuda":
            raise RuntimeError("_share_cuda_: only available on CUDA")
        device = self.device.index
        if self.nbytes() == 0:
            return device, None, 0, 0, None, 0, None, False
        alias = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        process, file, size_bytes = core.send_memory(alias)
        handle = f"{process}:{file}:{size_bytes}".encode()
        # The host computes: what was written to the memory is there, and there is no event.
        return device, handle, size_bytes, 0, handle, 0, None, False

    def receive(device: int, handle: bytes, *rest: object) -> Any:
        return core.receive_memory(*_parcel(handle), device).untyped_storage()

    def release(handle: bytes, *rest: object) -> None:
        core.let_go(*_parcel(handle))

    storage._share_cuda_ = share
    storage._new_shared_cuda = staticmethod(receive)
    storage._release_ipc_counter_cuda = staticmethod(release)


def _parcel(handle: bytes) -> tuple[int, int, int]:
    process, file, size_bytes = handle.decode().split(":")
    return int(process), int(file), int(size_bytes)
