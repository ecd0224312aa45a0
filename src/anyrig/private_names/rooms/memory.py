"""Private names of PyTorch that `anyrig.memory` uses."""

from __future__ import annotations

from ..name import Needs, PrivateName

_AGREEMENT = "ranks that agree on recomputation"
_DDP = "survive: DDP models after a failed step"
_FSDP = "survive: FSDP2 models after a failed step"
_HISTORY = "the source lines of allocations on a GPU"
_MODULES = "the names of parameters and buffers"
_PARTS = "survive: dividing nested batches"
_RECORDER = "track: tensors saved for the backward pass"

MEMORY = (
    PrivateName("torch.Tensor._version", "recomputation of blocks that change their buffers"),
    PrivateName("torch.UntypedStorage._cdata", "the source lines of allocations on the host"),
    PrivateName("torch._C._AutoDispatchBelowAutograd", _AGREEMENT),
    PrivateName("torch._C._autograd._get_sequence_nr", _RECORDER),
    PrivateName("torch._C._cuda_hasPrimaryContext", "which GPUs are in use", needs=Needs.CUDA),
    PrivateName("torch._C._cuda_isHistoryEnabled", _HISTORY, needs=Needs.CUDA),
    PrivateName("torch._C._cuda_setMemoryMetadata", _HISTORY, needs=Needs.CUDA),
    PrivateName("torch._C._current_autograd_node", _RECORDER),
    PrivateName("torch._C._current_graph_task_id", _RECORDER),
    PrivateName(
        "torch._C._distributed_c10d.Reducer._push_all_rebuilt_params",
        _DDP,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName("torch._C._distributed_c10d.Reducer._reset_state", _DDP, needs=Needs.DISTRIBUTED),
    PrivateName("torch._disable_dynamo", "recomputation in compiled modules"),
    PrivateName("torch._ops.OpOverload._schema", _RECORDER),
    PrivateName("torch.autograd.graph.Node._sequence_nr", _RECORDER),
    PrivateName("torch.cuda._lazy_call", "track before the first use of CUDA"),
    PrivateName("torch.cuda.memory._record_memory_history", _HISTORY),
    PrivateName("torch.cuda.memory._snapshot", _HISTORY),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam._unsharded_param",
        _FSDP,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._fsdp_param_groups",
        _FSDP,
        since=(2, 12),
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._is_root",
        _FSDP,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._state_ctx",
        _FSDP,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fully_shard.FSDPModule._get_fsdp_state",
        _FSDP,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName("torch.library.Library._destroy", _AGREEMENT),
    PrivateName("torch.nn.Module._buffers", _MODULES),
    PrivateName("torch.nn.Module._modules", _MODULES),
    PrivateName("torch.nn.Module._parameters", _MODULES),
    PrivateName("torch.nn.modules.batchnorm._BatchNorm", "survive: batch norm"),
    PrivateName("torch.ops.aten._to_copy", "track: the operators that copy"),
    PrivateName("torch.ops.c10d._allgather_base_", _AGREEMENT, needs=Needs.DISTRIBUTED),
    PrivateName("torch.ops.c10d._reduce_scatter_base_", _AGREEMENT, needs=Needs.DISTRIBUTED),
    PrivateName("torch.utils._python_dispatch.TorchDispatchMode", _RECORDER),
    PrivateName("torch.utils._python_dispatch._get_current_dispatch_mode_stack", _RECORDER),
    PrivateName("torch.utils._pytree.keystr", _PARTS),
    PrivateName("torch.utils._pytree.tree_flatten", _PARTS),
    PrivateName("torch.utils._pytree.tree_flatten_with_path", _PARTS),
    PrivateName("torch.utils._pytree.tree_unflatten", _PARTS),
)
