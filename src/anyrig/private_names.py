"""The private names of PyTorch that anyrig uses, and what breaks without each.

This is the only list of them, and a test checks that it is complete. `find_missing` checks the
names that virtual GPUs need in milliseconds, before anything is built for a PyTorch. Names that
virtual GPUs add to a PyTorch without CUDA are not listed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_MISSING = object()


@dataclass(frozen=True)
class PrivateName:
    """A private name of PyTorch.

    Attributes:
        name: the name, with its module; for C++, the name in `header`.
        breaks: what breaks without the name.
        header: the file below `torch/include` that declares a C++ name; empty for Python.
    """

    name: str
    breaks: str
    header: str = ""

    @property
    def exists(self) -> bool:
        """Whether the installed PyTorch has the name. Imports no module of PyTorch."""
        if self.header:
            return _header_declares(self.header, self.name)
        return _module_has(self.name)


_ENGINE = "torch/csrc/autograd/engine.h"
_BACKWARD = "backward passes in the threads of several GPUs"
_LISTS = "torch.cuda.comm: copies of lists of tensors in few messages"
_CHECKS = "--allow-missing-kernels: no warnings of GPUs without kernels"
_CURRENT = "torch.cuda: the current device, and CUDA after a fork"
_PROFILER = "profiles of CUDA"

NAMES_OF_VIRTUAL_GPUS = (
    PrivateName("torch._C._ImperativeEngine", "backward passes in the caller's thread"),
    PrivateName("torch.autograd.Variable._execution_engine", "every backward pass"),
    PrivateName("torch.autograd._supported_activities", _PROFILER),
    PrivateName("torch.autograd.profiler._supported_activities", _PROFILER),
    PrivateName("torch._TorchCompileInductorWrapper", "torch.compile with its default backend"),
    PrivateName(
        "torch._dynamo.backends.cudagraphs.boxed_nop", "torch.compile in modes that capture graphs"
    ),
    PrivateName("torch._dynamo.backends.debugging", "torch.compile with its default backend"),
    PrivateName("torch._C._jit_override_can_fuse_on_gpu", "scripted functions"),
    PrivateName("torch._meta_registrations", "shape-only mode: operators without a Meta kernel"),
    PrivateName("torch._ops.OpOverload", "torch.compile on the virtual clock"),
    PrivateName("torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND", "torch.cuda.jiterator"),
    PrivateName("torch._prims_common.compute_elementwise_output_strides", "torch.cuda.jiterator"),
    PrivateName("torch._prims_common.elementwise_dtypes", "torch.cuda.jiterator"),
    PrivateName("torch._tensor_str._tensor_str", "shape-only mode: printing of tensors"),
    PrivateName("torch._utils._flatten_dense_tensors", _LISTS),
    PrivateName("torch._utils._flatten_sparse_tensors", _LISTS),
    PrivateName("torch._utils._reorder_tensors_as", _LISTS),
    PrivateName("torch._utils._take_tensors", _LISTS),
    PrivateName("torch._utils._unflatten_dense_tensors", _LISTS),
    PrivateName("torch._utils._unflatten_sparse_tensors", _LISTS),
    PrivateName("torch.cuda._CudaDeviceProperties", "torch.cuda.get_device_properties"),
    PrivateName("torch.cuda._check_capability", _CHECKS),
    PrivateName("torch.cuda._check_cubins", _CHECKS),
    PrivateName("torch.cuda._device_count_nvml", "torch.cuda.device_count, which finds no GPU"),
    PrivateName("torch.cuda._exchange_device", _CURRENT),
    PrivateName("torch.cuda._is_in_bad_fork", _CURRENT),
    PrivateName("torch.cuda._lazy_init", _CURRENT),
    PrivateName("torch.cuda._maybe_exchange_device", _CURRENT),
    PrivateName("torch.cuda._queued_calls", _CHECKS),
    PrivateName("torch.cuda._utils._get_device_index", "torch.cuda.utilization and the like"),
    PrivateName("torch.cuda.nvtx._nvtx", "torch.cuda.nvtx"),
    PrivateName("torch.nn.init._no_grad_trunc_normal_", "shape-only mode: trunc_normal_"),
    PrivateName("torch.utils._triton.has_triton", "programs with their own Triton kernels"),
    # C++ names, without which the backend would not compile.
    PrivateName("init_local_ready_queue", "a failed backward pass", _ENGINE),
    PrivateName("device_ready_queues_", _BACKWARD, _ENGINE),
    PrivateName("thread_pool_shared_", _BACKWARD, _ENGINE),
    PrivateName("start_device_threads", _BACKWARD, _ENGINE),
    PrivateName("device_opt_", "every operator: a tensor's device", "c10/core/TensorImpl.h"),
    PrivateName(
        "struct CachingHostAllocatorImpl", "pinned memory", "ATen/core/CachingHostAllocator.h"
    ),
)

# Needed in addition if PyTorch has torch.distributed with gloo.
NAMES_OF_VIRTUAL_GROUPS = (
    PrivateName("torch.distributed.ProcessGroupGloo._Options", "every process group"),
    PrivateName("torch.distributed.distributed_c10d._NCCL_AVAILABLE", "is_nccl_available"),
)


_HISTORY = "the source lines of allocations on a GPU"
_RECORDER = "anyrig.memory.track: tensors saved for the backward pass"
_MODES = "replicas in threads: the modes and hooks of the caller"
_STEPS = "pipelines: the end of a backward pass"
_NORMS = "batch norm over several devices"

NAMES_OF_OTHER_ROOMS = (
    PrivateName("torch._C._AutoDispatchBelowAutograd", "ranks that agree on recomputation"),
    PrivateName("torch._C._are_functorch_transforms_active", "zero-bubble pipelines"),
    PrivateName("torch._C._functorch._grad_increment_nesting", "custom functions in pipelines"),
    PrivateName("torch._C._functorch._grad_decrement_nesting", "custom functions in pipelines"),
    PrivateName("torch._C._autograd._get_current_graph_task_keep_graph", _STEPS),
    PrivateName("torch._C._autograd._get_sequence_nr", _RECORDER),
    PrivateName("torch._C._autograd._top_saved_tensors_default_hooks", _MODES),
    PrivateName("torch._C._current_autograd_node", _RECORDER),
    PrivateName("torch._C._profiler._RecordFunctionFast", "anyrig run --report: steps, modules"),
    PrivateName("torch._C._current_graph_task_id", "accumulation of gradients over ranks"),
    PrivateName(
        "torch._C._dispatch_has_kernel_for_dispatch_key", "messages between ranks on the CPU"
    ),
    PrivateName("torch._C._will_engine_execute_node", "accumulation of gradients over ranks"),
    PrivateName(
        "torch.autograd._profiler_enabled", "anyrig run --report: programs that profile themselves"
    ),
    PrivateName(
        "torch.autograd.profiler.profile._prepare_trace",
        "anyrig run --report: programs that profile themselves",
    ),
    PrivateName("torch._compile._disable_dynamo", "compiled modules that are spread"),
    PrivateName("torch._disable_dynamo", "recomputation in compiled modules"),
    PrivateName("torch._dynamo.trace_rules", "compiled modules that are spread"),
    PrivateName("torch._foreach_copy_", "replicas: gradients in buckets"),
    PrivateName("torch._foreach_mul", _STEPS),
    PrivateName("torch.distributed.rendezvous._create_c10d_store", "rehearsals of rank 0 alone"),
    PrivateName("torch._foreach_mul_", "accumulation of gradients over ranks"),
    PrivateName("torch._weights_only_unpickler._get_allowed_globals", "reading torch files"),
    PrivateName("torch.autograd.gradcheck._gradcheck_helper", "hazards: programs that gradcheck"),
    PrivateName("torch.autograd.function._SingleLevelFunction", "custom functions in pipelines"),
    PrivateName("torch.cuda._lazy_call", "settings of CUDA before its first use"),
    PrivateName("torch.cuda.memory._record_memory_history", _HISTORY),
    PrivateName("torch.cuda.memory._snapshot", _HISTORY),
    PrivateName(
        "torch.distributed.distributed_c10d._update_default_pg",
        "anyrig.verification.verify in a process group: the run on one device",
    ),
    PrivateName("torch.nn.functional._in_projection", "zero-bubble pipelines: attention"),
    PrivateName("torch.nn.functional._in_projection_packed", "zero-bubble pipelines: attention"),
    PrivateName("torch.nn.modules.batchnorm._BatchNorm", _NORMS),
    PrivateName("torch.nn.modules.batchnorm._NormBase", _NORMS),
    PrivateName("torch.overrides._get_current_function_mode_stack", _MODES),
    PrivateName("torch.overrides._pop_mode", _MODES),
    PrivateName("torch.overrides._push_mode", _MODES),
    PrivateName("torch.utils._device.DeviceContext", _MODES),
    PrivateName("torch.utils._python_dispatch.TorchDispatchMode", _RECORDER),
    PrivateName("torch.utils._python_dispatch._get_current_dispatch_mode_stack", _MODES),
    PrivateName("torch.utils._python_dispatch.is_traceable_wrapper_subclass", _RECORDER),
    PrivateName("torch.utils._pytree", "nested batches and results"),
    PrivateName(
        "torch.utils.data.dataloader._BaseDataLoaderIter",
        "rehearsals: the samples of a step, and the time in its data loader",
    ),
)

# Names that exist only in a PyTorch for CUDA, or with virtual GPUs.
NAMES_OF_CUDA = (
    PrivateName("torch._C._cuda_getArchFlags", "the GPUs for which a CUDA build has kernels"),
    PrivateName("torch._C._cuda_hasPrimaryContext", "anyrig.memory.track: which GPUs are in use"),
    PrivateName("torch._C._cuda_isHistoryEnabled", _HISTORY),
    PrivateName("torch._C._cuda_setMemoryMetadata", _HISTORY),
)


def find_missing(names: Iterable[PrivateName] | None = None) -> list[PrivateName]:
    """Return the names that the installed PyTorch does not have.

    By default, check the names that virtual GPUs need.
    """
    if names is None:
        import torch.distributed as dist

        has_groups = dist.is_available() and dist.is_gloo_available()
        names = (*NAMES_OF_VIRTUAL_GPUS, *(NAMES_OF_VIRTUAL_GROUPS if has_groups else ()))
    return [name for name in names if not name.exists]


def _module_has(name: str) -> bool:
    """Return whether PyTorch has the module or attribute `name`, without importing a module."""
    module, _, attribute = name.rpartition(".")
    while module not in sys.modules and "." in module:
        module, _, before = module.rpartition(".")
        attribute = f"{before}.{attribute}"
    found: Any = sys.modules[module]
    for position, part in enumerate(attribute.split(".")):
        # `getattr` on a module could import another: torch imports some on first access.
        is_module = isinstance(found, ModuleType)
        inner = vars(found).get(part, _MISSING) if is_module else getattr(found, part, _MISSING)
        if inner is _MISSING:
            # The module is not imported yet, and importing it could take seconds.
            return _declared_in_file(found, attribute.split(".")[position:])
        found = inner
    return True


def _declared_in_file(package: Any, path: list[str]) -> bool:
    """Return whether `path` leads to an unimported module of `package` that mentions the rest."""
    folder = Path(getattr(package, "__file__", None) or "").parent
    for position, part in enumerate(path):
        file = folder / f"{part}.py"
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            return all(inner in text for inner in path[position + 1 :])
        folder = folder / part
        if not folder.is_dir():
            package_file = folder.parent / "__init__.py"
            return position > 0 and part in package_file.read_text(encoding="utf-8")
    return True


def _header_declares(header: str, name: str) -> bool:
    file = Path(str(sys.modules["torch"].__file__)).parent / "include" / header
    return file.is_file() and name in file.read_text(encoding="utf-8")
