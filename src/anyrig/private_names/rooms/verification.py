"""Private names of PyTorch that `anyrig.verification` uses."""

from __future__ import annotations

from ..name import Needs, PrivateName

_FLAT = "verify: the parameters of FSDP's flat shards"
_NAMES = "verify: the names of parameters in wrapped models"
_PADDED = "verify: batches that are padded to different widths"

VERIFICATION = (
    PrivateName("torch._dynamo.eval_frame.OptimizedModule._orig_mod", _NAMES),
    PrivateName("torch.autograd.graph.Node._input_metadata", "verify: the precision of losses"),
    PrivateName(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.ActivationWrapper."
        "_checkpoint_wrapped_module",
        _NAMES,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.distributed_c10d._update_default_pg",
        "verify in a process group: the run on one device",
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._flat_param.FlatParameter._fqns",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._flat_param.FlatParameter._is_padding_mask",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._flat_param.FlatParameter._numels",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._flat_param.FlatParameter._numels_with_padding",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._flat_param.FlatParameter._param_infos",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._flat_param.FlatParameter._params",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._flat_param.FlatParameter._shapes",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._flat_param.FlatParameter._shard_param_infos",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel."
        "_fsdp_wrapped_module",
        _NAMES,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel._handle",
        _FLAT,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName("torch.nn.modules.batchnorm._BatchNorm", "verify: batch norm"),
    PrivateName("torch.utils.data.dataloader._BaseDataLoaderIter", _PADDED),
    PrivateName("torch.utils.data.dataloader._BaseDataLoaderIter._next_index", _PADDED),
    PrivateName("torch.utils.data.dataloader._BaseDataLoaderIter._reset", _PADDED),
)
