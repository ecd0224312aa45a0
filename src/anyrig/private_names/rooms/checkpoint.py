"""Private names of PyTorch that `anyrig.checkpoint` uses."""

from __future__ import annotations

from ..name import Needs, PrivateName

_PREFIXES = "checkpoints of wrapped and compiled models: the plain names of their tensors"
_DCP = "reading checkpoints of torch.distributed.checkpoint"
_OWN_LOADING = "undoing a load that a module's own code refuses half way"

CHECKPOINT = (
    PrivateName("torch._dynamo.eval_frame.OptimizedModule._orig_mod", _PREFIXES),
    PrivateName("torch._weights_only_unpickler._get_allowed_globals", "reading torch files"),
    PrivateName(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper."
        "_checkpoint_wrapped_module",
        _PREFIXES,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.checkpoint.filesystem._StorageInfo", _DCP, needs=Needs.DISTRIBUTED
    ),
    PrivateName(
        "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel."
        "_fsdp_wrapped_module",
        _PREFIXES,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName("torch.nn.Module._load_from_state_dict", _OWN_LOADING),
    PrivateName("torch.nn.Module._load_state_dict_post_hooks", _OWN_LOADING),
    PrivateName("torch.nn.Module._load_state_dict_pre_hooks", _OWN_LOADING),
    PrivateName("torch.serialization._get_layout", _DCP),
)
