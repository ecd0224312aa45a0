"""Private names of PyTorch that `anyrig.parallel` uses."""

from __future__ import annotations

from ..name import Needs, PrivateName

_ACCUMULATION = "accumulation of gradients over ranks"
_ATTENTION = "zero-bubble pipelines: attention"
_COMPILED = "compiled modules that are spread"
_ENCODER = "pipelines: the encoder and decoder of torch.nn"
_FUNCTIONS = "custom functions in pipelines"
_HOOKS = "modules and tensors with hooks"
_MODES = "replicas in threads: the modes and hooks of the caller"
_MODULES = "copies and parts of modules"
_NESTED = "pipelines: nested arguments"
_NORMS = "batch norm over several devices"
_OTHER_STAGES = "pipelines over ranks: tensors of other stages"
_RECURRENT = "replicas and pipelines of recurrent networks"
_SHARDED = "FSDP2: gradients of the shards"
_STEPS = "pipelines: the end of a backward pass"
_VERSIONS = "gradients and buffers that change between steps"

PARALLEL = (
    PrivateName("torch.Tensor._backward_hooks", _HOOKS),
    PrivateName("torch.Tensor._base", "pipelines: what is known of a recorded tensor"),
    PrivateName("torch.Tensor._is_view", "zero-bubble pipelines"),
    PrivateName("torch.Tensor._make_wrapper_subclass", _OTHER_STAGES),
    PrivateName("torch.Tensor._post_accumulate_grad_hooks", _HOOKS),
    PrivateName("torch.Tensor._version", _VERSIONS),
    PrivateName("torch.UntypedStorage._cdata", "pipelines and replicas: tensors that share memory"),
    PrivateName(
        "torch._C._are_functorch_transforms_active", "means over targets; zero-bubble pipelines"
    ),
    PrivateName("torch._C._autograd._get_current_graph_task_keep_graph", _STEPS),
    PrivateName("torch._C._autograd._top_saved_tensors_default_hooks", _MODES),
    PrivateName("torch._C._current_graph_task_id", _ACCUMULATION),
    PrivateName(
        "torch._C._distributed_c10d.Reducer._rebuild_buckets",
        "DDP: the order of its buckets",
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName("torch._C._functorch._grad_decrement_nesting", _FUNCTIONS, since=(2, 14)),
    PrivateName("torch._C._functorch._grad_increment_nesting", _FUNCTIONS, since=(2, 14)),
    PrivateName("torch._C._set_grad_enabled", "pipelines: gradients that forward enables"),
    PrivateName("torch._C._will_engine_execute_node", _ACCUMULATION),
    PrivateName("torch._compile._disable_dynamo", _COMPILED),
    PrivateName("torch._dynamo.eval_frame.OptimizedModule._orig_mod", _COMPILED),
    PrivateName("torch._dynamo.trace_rules.add", _COMPILED),
    PrivateName("torch._foreach_copy_", "replicas: gradients in buckets"),
    PrivateName("torch._foreach_mul", _STEPS),
    PrivateName("torch._foreach_mul_", _ACCUMULATION),
    PrivateName("torch.autograd.Variable._execution_engine", "the end of every backward pass"),
    PrivateName(
        "torch.autograd.function.BackwardCFunction._forward_cls", "losses of custom functions"
    ),
    PrivateName("torch.autograd.function._SingleLevelFunction", _FUNCTIONS),
    PrivateName("torch.autograd.function._bind_default_args", _FUNCTIONS, since=(2, 14)),
    PrivateName("torch.autograd.function._call_custom_function_call", _FUNCTIONS, since=(2, 14)),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam._unsharded_param",
        _SHARDED,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._fsdp_param_group",
        _SHARDED,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._pre_backward",
        "FSDP2: outputs of classes that it does not enter",
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._state_ctx",
        _SHARDED,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fully_shard.FSDPModule._get_fsdp_state",
        _SHARDED,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName("torch.fx.Node._erased", "pipelines: operations that a recording forgets"),
    PrivateName("torch.nn.Module._apply", "replicas: model.to() and the like"),
    PrivateName("torch.nn.Module._backward_hooks", _HOOKS),
    PrivateName("torch.nn.Module._backward_pre_hooks", _HOOKS),
    PrivateName("torch.nn.Module._buffers", _MODULES),
    PrivateName("torch.nn.Module._compiled_call_impl", _COMPILED),
    PrivateName("torch.nn.Module._forward_hooks", _HOOKS),
    PrivateName("torch.nn.Module._forward_pre_hooks", _HOOKS),
    PrivateName("torch.nn.Module._load_from_state_dict", "loading the state of spread modules"),
    PrivateName("torch.nn.Module._modules", _MODULES),
    PrivateName("torch.nn.Module._non_persistent_buffers_set", _MODULES),
    PrivateName("torch.nn.Module._parameters", _MODULES),
    PrivateName("torch.nn.RNNBase._flat_weights", _RECURRENT),
    PrivateName("torch.nn.RNNBase._flat_weights_names", _RECURRENT),
    PrivateName("torch.nn.functional._in_projection", _ATTENTION),
    PrivateName("torch.nn.functional._in_projection_packed", _ATTENTION),
    PrivateName("torch.nn.modules.batchnorm._BatchNorm", _NORMS),
    PrivateName("torch.nn.modules.batchnorm._BatchNorm._check_input_dim", _NORMS),
    PrivateName("torch.nn.modules.batchnorm._NormBase", _NORMS),
    PrivateName("torch.nn.modules.transformer._detect_is_causal_mask", _ENCODER),
    PrivateName("torch.nn.modules.transformer._get_seq_len", _ENCODER),
    PrivateName("torch.ops.aten._amp_foreach_non_finite_check_and_unscale_", _OTHER_STAGES),
    PrivateName("torch.ops.aten._foreach_mul_", _OTHER_STAGES),
    PrivateName("torch.ops.aten._foreach_zero_", _OTHER_STAGES),
    PrivateName("torch.ops.aten._to_copy", _OTHER_STAGES),
    PrivateName("torch.overrides._get_current_function_mode_stack", _MODES),
    PrivateName("torch.overrides._pop_mode", _MODES),
    PrivateName("torch.overrides._push_mode", _MODES),
    PrivateName("torch.utils._device.DeviceContext", _MODES),
    PrivateName("torch.utils._python_dispatch.TorchDispatchMode", "pipelines: tensors of a stage"),
    PrivateName("torch.utils._python_dispatch._get_current_dispatch_mode_stack", _MODES),
    PrivateName("torch.utils._python_dispatch._pop_mode", _MODES),
    PrivateName("torch.utils._python_dispatch._push_mode", _MODES),
    PrivateName("torch.utils._pytree.tree_flatten", _NESTED),
    PrivateName("torch.utils._pytree.tree_leaves", _NESTED),
    PrivateName("torch.utils._pytree.tree_map", _NESTED),
    PrivateName("torch.utils._pytree.tree_unflatten", _NESTED),
)
