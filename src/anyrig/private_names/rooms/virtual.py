"""Private names of PyTorch that virtual GPUs use, besides the headers in `headers`.

Names that virtual GPUs bind in `torch._C` of a PyTorch without CUDA, by the dicts that its
functions `bindings` return, are not listed.
"""

from __future__ import annotations

from ..name import Needs, PrivateName

_BACKWARD = "backward passes in the threads of several GPUs"
_CUDA = "torch.cuda: what a CUDA build says of itself"
_CURRENT = "torch.cuda: the current device, and CUDA after a fork"
_ENGINE = "torch/csrc/autograd/engine.h"
_EVERY_GROUP = "every process group"
_FUSED = "fused operators on the virtual clock"
_JITERATOR = "torch.cuda.jiterator"
_KERNELS = "--without-kernels: no warnings of GPUs without kernels"
_LISTS = "torch.cuda.comm: copies of lists of tensors in few messages"
_PROFILER = "profiles of CUDA"
_RECORDED = "the flight recorder of collectives"
_SHARED = "tensors that processes share"
_STREAMS = "torch.cuda.Stream and torch.cuda.Event"
_SYMMETRIC = "symmetric memory"
_VALUES = "shape-only mode: the line that needs a value"

VIRTUAL = (
    PrivateName("torch.UntypedStorage._new_shared_cuda", _SHARED),
    PrivateName("torch.UntypedStorage._release_ipc_counter_cuda", _SHARED),
    PrivateName("torch.UntypedStorage._share_cuda_", _SHARED),
    PrivateName("torch._C.DisableTorchFunctionSubclass", _LISTS),
    PrivateName("torch._C._CUDAGraph.debug_dump", "CUDA graphs", needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._CudaDeviceProperties", _CUDA, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._ImperativeEngine", "backward passes in the caller's thread"),
    PrivateName("torch._C._cuda_elapsedMilliseconds", _STREAMS, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cuda_getArchFlags", _CUDA, needs=Needs.CUDA),
    PrivateName("torch._C._cuda_getDeviceCount", "machines with real GPUs", needs=Needs.CUDA),
    PrivateName("torch._C._cuda_getStreamFromExternal", _STREAMS, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cuda_getStreamFromPool", _STREAMS, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cuda_highestStreamPriority", _STREAMS, needs=Needs.VIRTUAL_GPUS),
    PrivateName(
        "torch._C._cuda_jiterator_compile_and_launch_kernel",
        _JITERATOR,
        needs=Needs.VIRTUAL_GPUS,
    ),
    PrivateName("torch._C._cuda_maybeExchangeDevice", _CURRENT, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cuda_openEvent", _STREAMS, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cuda_shareEvent", _STREAMS, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cuda_streamHandle", _STREAMS, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cuda_streamPriority", _STREAMS, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cudart", "torch.cuda.cudart", needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._cudnn.getVersionInt", _CUDA, needs=Needs.CUDA),
    PrivateName(
        "torch._C._distributed_c10d._SymmetricMemory.get_mempool_allocator",
        _SYMMETRIC,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch._C._distributed_c10d._SymmetricMemory.set_backend",
        _SYMMETRIC,
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch._C._distributed_c10d._dump_fr_trace_json", _RECORDED, needs=Needs.DISTRIBUTED
    ),
    PrivateName("torch._C._distributed_c10d._dump_nccl_trace", _RECORDED, needs=Needs.NCCL),
    PrivateName("torch._C._distributed_c10d._dump_nccl_trace_json", _RECORDED, needs=Needs.NCCL),
    PrivateName(
        "torch._C._distributed_c10d._hash_tensors",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        needs=Needs.NCCL,
    ),
    PrivateName(
        "torch._C._distributed_c10d._is_nvshmem_available", _SYMMETRIC, needs=Needs.VIRTUAL_GPUS
    ),
    PrivateName("torch._C._distributed_c10d._reset_fr_recording_nccl", _RECORDED, needs=Needs.NCCL),
    PrivateName("torch._C._has_cuda", _CUDA),
    PrivateName("torch._C._has_cudnn", _CUDA),
    PrivateName("torch._C._has_cusparselt", _CUDA),
    PrivateName("torch._C._has_gds", _CUDA, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._jit_override_can_fuse_on_gpu", "scripted functions"),
    PrivateName("torch._C._nccl_version", _CUDA, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._nvtx", "torch.cuda.nvtx", needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch._C._rpc_init", "torch.distributed.rpc", needs=Needs.RPC),
    PrivateName("torch._TorchCompileInductorWrapper", "torch.compile with its default backend"),
    PrivateName("torch._dynamo", "imports of torch without garbage collections"),
    PrivateName(
        "torch._dynamo.backends.cudagraphs.cudagraphs",
        "torch.compile in modes that capture graphs",
    ),
    PrivateName(
        "torch._dynamo.backends.debugging.aot_eager", "torch.compile with its default backend"
    ),
    PrivateName(
        "torch._dynamo.backends.debugging.boxed_nop", "torch.compile in modes that capture graphs"
    ),
    PrivateName("torch._functorch._aot_autograd.utils.make_boxed_func._boxed_call", _FUSED),
    PrivateName("torch._meta_registrations", "shape-only mode: operators without a Meta kernel"),
    PrivateName("torch._ops.OpOverload", "torch.compile on the virtual clock"),
    PrivateName("torch._ops.OpOverload._schema", "torch.compile on the virtual clock"),
    PrivateName("torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND", _JITERATOR),
    PrivateName("torch._prims_common.compute_elementwise_output_strides", _JITERATOR),
    PrivateName("torch._prims_common.elementwise_dtypes", _JITERATOR),
    PrivateName("torch._tensor_str._tensor_str", "shape-only mode: printing of tensors"),
    PrivateName("torch._utils._flatten_dense_tensors", _LISTS),
    PrivateName("torch._utils._flatten_sparse_tensors", _LISTS),
    PrivateName("torch._utils._reorder_tensors_as", _LISTS),
    PrivateName("torch._utils._take_tensors", _LISTS),
    PrivateName("torch._utils._unflatten_dense_tensors", _LISTS),
    PrivateName("torch._utils._unflatten_sparse_tensors", _LISTS),
    PrivateName("torch.autograd.Variable._execution_engine", "every backward pass"),
    PrivateName("torch.autograd._supported_activities", _PROFILER),
    PrivateName("torch.autograd.profiler._supported_activities", _PROFILER),
    PrivateName("torch.cuda._CudaDeviceProperties", "torch.cuda.get_device_properties"),
    PrivateName("torch.cuda._check_capability", _KERNELS),
    PrivateName("torch.cuda._check_cubins", _KERNELS),
    PrivateName("torch.cuda._cudart", "torch.cuda.cudart"),
    PrivateName("torch.cuda._device_count_nvml", "torch.cuda.device_count, which finds no GPU"),
    PrivateName("torch.cuda._exchange_device", _CURRENT),
    PrivateName("torch.cuda._get_device_properties", _CUDA, needs=Needs.VIRTUAL_GPUS),
    PrivateName("torch.cuda._is_in_bad_fork", _CURRENT),
    PrivateName("torch.cuda._lazy_init", _CURRENT),
    PrivateName("torch.cuda._maybe_exchange_device", _CURRENT),
    PrivateName("torch.cuda._queued_calls", _KERNELS),
    PrivateName("torch.cuda._utils._get_device_index", "torch.cuda.utilization and the like"),
    PrivateName("torch.cuda.graphs._dump_graph_dot", "drawings of CUDA graphs", since=(2, 14)),
    PrivateName("torch.cuda.nvtx._nvtx", "torch.cuda.nvtx"),
    PrivateName("torch.distributed.ProcessGroupGloo._Options", _EVERY_GROUP, needs=Needs.GLOO),
    PrivateName(
        "torch.distributed.ProcessGroupGloo._Options._devices", _EVERY_GROUP, needs=Needs.GLOO
    ),
    PrivateName(
        "torch.distributed.ProcessGroupGloo._Options._threads", _EVERY_GROUP, needs=Needs.GLOO
    ),
    PrivateName(
        "torch.distributed.ProcessGroupGloo._Options._timeout", _EVERY_GROUP, needs=Needs.GLOO
    ),
    PrivateName(
        "torch.distributed.distributed_c10d._NCCL_AVAILABLE",
        "is_nccl_available",
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName(
        "torch.distributed.rendezvous._create_c10d_store",
        "rehearsals of rank 0 alone",
        needs=Needs.DISTRIBUTED,
    ),
    PrivateName("torch.nn.init._no_grad_trunc_normal_", "shape-only mode: trunc_normal_"),
    PrivateName("torch.ops.aten._index_put_impl_", _VALUES),
    PrivateName("torch.ops.aten._local_scalar_dense", _VALUES),
    PrivateName("torch.ops.aten._log_softmax", _FUSED),
    PrivateName("torch.ops.aten._log_softmax_backward_data", _FUSED),
    PrivateName("torch.ops.aten._softmax", _FUSED),
    PrivateName("torch.ops.aten._softmax_backward_data", _FUSED),
    PrivateName("torch.ops.aten._to_copy", _FUSED),
    PrivateName("torch.utils._triton.has_triton", "programs with their own Triton kernels"),
    # Names within C++ headers, without which the backend would not compile.
    PrivateName("device_opt_", "every operator: a tensor's device", "c10/core/TensorImpl.h"),
    PrivateName("device_ready_queues_", _BACKWARD, _ENGINE),
    PrivateName("init_local_ready_queue", "a failed backward pass", _ENGINE),
    PrivateName("start_device_threads", _BACKWARD, _ENGINE),
    PrivateName(
        "struct CachingHostAllocatorImpl", "pinned memory", "ATen/core/CachingHostAllocator.h"
    ),
    PrivateName("thread_pool_shared_", _BACKWARD, _ENGINE),
)
