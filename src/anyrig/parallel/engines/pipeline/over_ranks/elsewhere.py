"""A parameter or buffer that another rank of the pipeline has.

It has the tensor's shape, dtype and ``requires_grad``, but no memory. So on every rank, optimizers
can be made from ``model.parameters()``, whose order and names are those of one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from .....errors import ShardSaveError, SpreadError

_ATEN = torch.ops.aten
# In-place operations whose results this rank never reads.
_IGNORED = (_ATEN.copy_.default, _ATEN.zero_.default, _ATEN.detach_.default)
# In-place operations on lists, which must still change the other tensors of the list.
_ON_LISTS = ("_foreach_zero_", "_foreach_mul_", "_amp_foreach_non_finite_check_and_unscale_")
_SAME = (_ATEN.detach.default, _ATEN.alias.default, _ATEN.clone.default, _ATEN._to_copy.default)


class Elsewhere(Tensor):
    """A tensor without values, in the place of one that another rank has.

    Attributes:
        label: the name of the tensor in the module.
        on_rank: the rank that has the tensor; the first one if there are several pipelines.
        mark: what stands for the gradient; see `elsewhere_gradients`.
    """

    label: str
    on_rank: int
    mark: Elsewhere | None = None

    @staticmethod
    def __new__(
        cls, like: Tensor, label: str, on_rank: int, device: torch.device, dtype: torch.dtype
    ) -> Elsewhere:
        """Return a tensor like `like`, without values."""
        # Private, as PyTorch has no other way to make a tensor without memory on a device;
        # `case_refusals` covers it.
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls, like.shape, dtype=dtype, device=device, requires_grad=False
        )
        made.label, made.on_rank = label, on_rank
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Copy the tensor without values, ignore writes of values, and refuse all else."""
        given = args[0] if args else None
        if isinstance(given, Elsewhere):
            if func in _IGNORED:
                return given
            # PyTorch makes such a view to find the node that accumulates a parameter's gradient.
            is_same_view = func is _ATEN.view.default and tuple(args[1]) == tuple(given.shape)
            if func in _SAME or is_same_view:
                options = kwargs or {}
                device = options.get("device") or given.device
                return _elsewhere_like(given, device, options.get("dtype") or given.dtype)
        if func.overloadpacket.__name__ in _ON_LISTS:
            return _on_others(func, args, kwargs or {})
        found = next(leaf for leaf in _flat(args, kwargs) if isinstance(leaf, Elsewhere))
        raise SpreadError(
            f"{found.label!r} is on rank {found.on_rank} of the pipeline, so this rank cannot "
            f"compute {func.__name__} with it. Compute with it inside the module; clip "
            "gradients with model.clip_grad_norm_(…); save the whole model with "
            "anyrig.save(folder, model=model) on every rank"
        )

    def full_tensor(self) -> NoReturn:
        """Raise SpreadError; see `whole_state.OnOneRank`, which `anyrig.save` uses."""
        raise SpreadError(
            f"{self.label!r} is on rank {self.on_rank} of the pipeline; save the whole model with "
            "anyrig.save(folder, model=model) on every rank"
        )

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"Elsewhere({self.label!r}, rank={self.on_rank}, shape={tuple(self.shape)})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = _elsewhere_like(self, self.device, self.dtype)
        made = torch.nn.Parameter(copied, self.requires_grad) if is_parameter(self) else copied
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise ShardSaveError: one rank would save its stages as the whole model."""
        raise ShardSaveError(
            f"{self.label!r} is on rank {self.on_rank} of the pipeline, so saving the model here "
            "would lose it. anyrig.save(folder, model=model, optimizer=optimizer) on every rank "
            "saves the whole"
        )


def put_elsewhere(tensor: Tensor, name: str, rank: int, device: torch.device) -> Tensor:
    """Return a stand-in, on `device`, for a parameter or buffer that `rank` has."""
    made = Elsewhere(tensor, name, rank, device, tensor.dtype)
    if not isinstance(tensor, torch.nn.Parameter):
        return made
    return torch.nn.Parameter(made, tensor.requires_grad)


def is_parameter(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter."""
    return isinstance(tensor, torch.nn.Parameter)


def _elsewhere_like(given: Elsewhere, device: torch.device, dtype: torch.dtype) -> Elsewhere:
    return Elsewhere(given, given.label, given.on_rank, device, dtype)


def _on_others(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of lists with the tensors that this rank has."""
    kept = [not isinstance(each, Elsewhere) for each in args[0]]
    if not any(kept):
        return None
    size = len(kept)
    rest = [
        [part for part, keep in zip(each, kept, strict=True) if keep]
        if isinstance(each, (list, tuple)) and len(each) == size
        else each
        for each in args
    ]
    return func(*rest, **kwargs)


def _flat(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> list[Any]:
    found: list[Any] = []
    for value in (*args, *(kwargs or {}).values()):
        found += value if isinstance(value, (list, tuple)) else [value]
    return found
