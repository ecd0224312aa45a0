"""Private names of PyTorch that `anyrig.rehearsal` uses."""

from __future__ import annotations

from ..name import PrivateName

_OTHER_PROFILERS = "reports: programs that profile themselves"
_RECOMPUTED = "findings: which operators are cheap to recompute"

REHEARSAL = (
    PrivateName("torch._C._current_graph_task_id", "remedies: calls within a backward pass"),
    PrivateName("torch._C._profiler._RecordFunctionFast", "anyrig run --report: steps, modules"),
    PrivateName("torch._dynamo", "remedies: trials that share an imported compiler"),
    PrivateName("torch.autograd._profiler_enabled", _OTHER_PROFILERS),
    PrivateName("torch.autograd.profiler.profile._prepare_trace", _OTHER_PROFILERS),
    PrivateName("torch.cuda._lazy_call", "reports: waiting for ranks that end last"),
    PrivateName("torch.ops.aten._fused_rms_norm", _RECOMPUTED),
    PrivateName("torch.ops.aten._local_scalar_dense", "findings: waits of the host"),
    PrivateName("torch.ops.aten._log_softmax", _RECOMPUTED),
    PrivateName("torch.ops.aten._scaled_dot_product_cudnn_attention", _RECOMPUTED),
    PrivateName("torch.ops.aten._scaled_dot_product_efficient_attention", _RECOMPUTED),
    PrivateName("torch.ops.aten._scaled_dot_product_flash_attention", _RECOMPUTED),
    PrivateName("torch.ops.aten._softmax", _RECOMPUTED),
)
