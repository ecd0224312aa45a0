"""CUDA tensors that `torch.multiprocessing` sends to other processes of a rehearsal.

`torch.multiprocessing.reductions` gets a handle from a storage and creates a storage from a handle.
The functions here do both for virtual GPUs. `csrc/memory/shared_memory.h` documents the handles.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

# The arguments that rebuild a storage in another process, in PyTorch's order: device, handle, size
# in bytes, offset in bytes, handle and offset of the reference counter, handle of the event, and
# whether to wait for the event.
_Sent = tuple[int, "bytes | None", int, int, "bytes | None", int, "bytes | None", "bool | None"]


def patch(core: ModuleType) -> None:
    """Make `torch.UntypedStorage` send and receive memory of CUDA devices."""
    storage: Any = torch.UntypedStorage

    def share(self: Any) -> _Sent:
        if self.device.type != "cuda":
            raise RuntimeError("_share_cuda_: only available on CUDA")
        device = self.device.index
        if self.nbytes() == 0:
            return device, None, 0, 0, None, 0, None, None
        alias = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        process, file, size_bytes = core.send_memory(alias)
        handle = f"{process}:{file}:{size_bytes}".encode()
        # Kernels run on the host and have finished writing, so no event is needed.
        return device, handle, size_bytes, 0, handle, 0, None, False

    def receive(device: int, handle: bytes, *rest: object) -> Any:
        return core.receive_memory(*_parse(handle), device).untyped_storage()

    def release(handle: bytes, *rest: object) -> None:
        core.let_go(*_parse(handle))

    storage._share_cuda_ = share
    storage._new_shared_cuda = staticmethod(receive)
    storage._release_ipc_counter_cuda = staticmethod(release)


def _parse(handle: bytes) -> tuple[int, int, int]:
    process, file, size_bytes = handle.decode().split(":")
    return int(process), int(file), int(size_bytes)
