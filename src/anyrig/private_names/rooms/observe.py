"""Private names of PyTorch that `anyrig.observe` uses."""

from __future__ import annotations

from ..name import PrivateName

_STORAGES = "the memory behind tensors"

OBSERVE = (
    PrivateName("torch.Tensor._indices", _STORAGES),
    PrivateName("torch.Tensor._values", _STORAGES),
    PrivateName("torch.nn.Module._modules", "the modules that exist"),
    PrivateName("torch.nn.Module._non_persistent_buffers_set", "the names of modules"),
    PrivateName("torch.nn.Module._parameters", "the modules that exist"),
    PrivateName(
        "torch.nn.modules.module._global_forward_hooks_with_kwargs",
        "compiled modules, which warn of hooks that have been removed",
    ),
    PrivateName("torch.utils._python_dispatch.is_traceable_wrapper_subclass", _STORAGES),
    PrivateName("torch.utils.data.dataloader._BaseDataLoaderIter", "the batches of data loaders"),
)
