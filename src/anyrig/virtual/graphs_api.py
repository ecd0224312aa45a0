"""The base classes of `torch.cuda.CUDAGraph` and `torch.cuda.MemPool`, and their functions."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from .rebinding import replace_in_torch

# Modules of PyTorch, and the class in each that derives from a class bound here.
_DERIVED = {"torch.cuda.graphs": "CUDAGraph", "torch.cuda.memory": "MemPool"}


def bindings(core: ModuleType) -> dict[str, Any]:
    """Return the functions and classes by their names in `torch._C`.

    The functions take a storage as `torch.UntypedStorage._cdata`, like Inductor's graph trees.
    """

    def are_at(tensors: Sequence[Any], addresses: Sequence[int], indices: Sequence[int]) -> bool:
        return all(tensors[index].data_ptr() == addresses[index] for index in indices)

    def tensor_over(facts: Mapping[str, Any], storage: Any) -> torch.Tensor:
        tensor = torch.empty(0, dtype=facts["dtype"], device=facts["device"])
        return tensor.set_(storage, facts["storage_offset"], facts["size"], facts["stride"])

    return {
        "_cuda_CUDAAllocator_AllocatorState": core.PoolCheckpoint,
        "_cuda_getCheckpointState": core.pool_checkpoint,
        "_cuda_setCheckpointPoolState": core.restore_pool,
        "_cuda_checkPoolLiveAllocations": core.pool_holds,
        "_has_Standard_Deleter": core.has_device_memory,
        "_free_And_Remove_DeleterFn": core.free_and_forget,
        "_set_storage_access_error_msg": core.forbid_access,
        "_set_storage_data_ptr_access_error_msg": core.forbid_access_to_storage,
        "_tensors_data_ptrs_at_indices_equal": are_at,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": tensor_over,
        "_CUDAGraph": core.CudaGraph,
        "_MemPool": core.MemoryPool,
        "_cuda_CUDAAllocator": core.PoolAllocator,
        "_cuda_isCurrentStreamCapturing": core.is_capturing,
        "_graph_pool_handle": lambda: core.new_pool_id(True),
        "_cuda_beginAllocateToPool": core.begin_pool,
        "_cuda_beginAllocateCurrentStreamToPool": core.begin_pool_of_stream,
        "_cuda_beginAllocateCurrentThreadToPool": core.begin_pool_of_thread,
        "_cuda_endAllocateToPool": core.end_pool,
        "_cuda_releasePool": core.release_pool,
    }


def patch() -> None:
    """Redefine PyTorch's classes on the base classes here.

    PyTorch's modules defined them on other base classes when torch was imported.
    """
    for module_name, name in _DERIVED.items():
        module = importlib.import_module(module_name)
        old_attributes = dict(vars(module))
        importlib.reload(module)
        derived = {name: getattr(module, name)}
        vars(module).update(
            old_attributes
        )  # other modules hold the rest of the old module's objects
        replace_in_torch({name: old_attributes[name]}, derived)
    graphs: Any = torch.cuda.graphs
    # PyTorch 2.14 and later draw a graph with this private function, which calls CUDA's library.
    if hasattr(graphs, "_dump_graph_dot"):
        graphs._dump_graph_dot = _dump_graph_dot


def _dump_graph_dot(graph: Any, path: str, *, verbose: bool = True) -> None:
    bindings_of_torch: Any = torch._C
    bindings_of_torch._CUDAGraph.debug_dump(graph, path)
