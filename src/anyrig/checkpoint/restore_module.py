"""Put the saved state of a module into a live module: the checks first, then the changes.

Entries of a module's state dict::

    weight                     a parameter or buffer: copied by PyTorch, in place
    weight.qdata, weight.scale of a weight that wraps tensors: copied here, in place
    weight.absmax, SCB         what a module adds to its state dict: loaded by the module, or else
                               copied here, in place, and compared afterwards
    _extra_state               a value: set by the module
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import KeyMismatchError
from ..transfer.inner_tensors import describe_wrapper_type, flatten_wrapper, is_wrapper
from .capture import entries_of_tensor, model_entries
from .fit import require_fit
from .names import unwrapped
from .own_loading import keep_state, loads_in_own_way
from .quantised_weights import QuantisedWeights
from .shards import divided_like, is_elsewhere, is_sharded, read_into
from .snapshot import ModuleState
from .tensor_in_parts import SavedTensor, TensorInParts, whole_tensor
from .undo import Undo


def prepare_module(
    state: ModuleState, called: str, model: nn.Module, source: object, *, convert: bool
) -> tuple[bool, Callable[[Undo], None]]:
    """Check that a state fits a module, and return how to load it.

    Args:
        state: the state to load.
        called: the module's name in the checkpoint, for errors.
        model: the module.
        source: names the checkpoint in errors.
        convert: whether to convert floating-point values to the types of the module.

    Returns:
        Whether the load may fail once it has begun, and a function that loads the state.

    Raises:
        KeyMismatchError: names, shapes or types differ; the message lists them.
    """
    entries = model_entries(model)
    saved: dict[str, Any] = {**state.tensors, **state.values}
    own: dict[str, Any] = {}
    for name, (_, value) in entries.items():
        own |= entries_of_tensor(name, value)
    what, target = f"the {called} in {source}", f"this {type(model).__name__}"
    quantised = QuantisedWeights.of(model)
    require_fit(saved, own, what, target, convert=convert, free_shapes=quantised.packed_names(own))
    _require_same_wrappers(saved, entries, what, target)
    prepared = quantised.prepare(saved, what, target)
    added = _added_entries(model, entries)
    fallible = bool(added) or loads_in_own_way(model)

    def apply(undo: Undo) -> None:
        if fallible:
            undo.add(keep_state(model, {name: value for name, (_, value) in entries.items()}))
        wrapped = {name for name, (_, value) in entries.items() if is_wrapper(value)}
        for name in wrapped:
            for inner, tensor in flatten_wrapper(name, entries[name][1]):
                tensor.copy_(whole_tensor(saved[inner]))
        ready = {
            own_name: value if name in wrapped else _ready(value, saved[name])
            for name, (own_name, value) in entries.items()
        }
        if not fallible:
            unwrapped(model).load_state_dict(ready)
            return
        try:
            unwrapped(model).load_state_dict(ready)
        except Exception:
            if not added:
                raise
            # The module adds entries that it does not load, as bitsandbytes' layers do.
            unwrapped(model).load_state_dict(
                {own_name: value for own_name, value in ready.items() if own_name not in added}
            )
            for name, (own_name, value) in entries.items():
                if own_name in added and value.shape == saved[name].shape:
                    value.copy_(whole_tensor(saved[name]))
        prepared()
        _require_loaded(model, saved, added, what, target)

    return fallible, apply


def _require_same_wrappers(
    saved: Mapping[str, Any], entries: Mapping[str, tuple[str, Any]], what: str, target: str
) -> None:
    for name, (_, value) in entries.items():
        wanted = describe_wrapper_type(value) if is_wrapper(value) else None
        found = saved[name]
        if wanted is None and not (isinstance(found, str) and isinstance(value, Tensor)):
            continue
        if found != wanted:
            raise KeyMismatchError(
                f"{what} has {name} as {_kind(found)} instead of {wanted or _kind(value)}. Nothing "
                f"was loaded. Quantise {target} as the saved one was, before load()"
            )


def _kind(value: Any) -> str:
    return value if isinstance(value, str) else f"a plain {type(value).__name__}"


def _ready(value: Any, saved: Any) -> Any:
    """Return a saved value in the form in which the module copies it."""
    if is_elsewhere(value):  # another rank of the pipeline loads it
        return value
    if isinstance(saved, TensorInParts):
        return _filled(value, saved)
    if isinstance(value, Tensor) and is_sharded(value):
        return divided_like(saved, value)
    return saved


def _filled(value: Any, saved: TensorInParts) -> Tensor:
    """Read a saved tensor into the memory of the model's own tensor, and return the result.

    If elements of the model's tensor share memory, return the whole saved tensor instead.
    """
    if not isinstance(value, Tensor):
        return saved.whole()
    shares = zip(value.stride(), value.shape, strict=True)
    if not is_sharded(value) and any(stride == 0 and size > 1 for stride, size in shares):
        return saved.whole()
    return read_into(saved, value.detach())


def _added_entries(model: nn.Module, entries: Mapping[str, tuple[str, Any]]) -> set[str]:
    """Return the names that modules add to the state dict besides parameters and buffers."""
    inner = unwrapped(model)
    usual = {name for name, _ in inner.named_parameters(remove_duplicate=False)}
    usual |= {name for name, _ in inner.named_buffers(remove_duplicate=False)}
    return {
        own_name
        for own_name, value in entries.values()
        if own_name not in usual and isinstance(value, Tensor)
    }


def _require_loaded(
    model: nn.Module, saved: Mapping[str, SavedTensor], added: set[str], what: str, target: str
) -> None:
    """Raise if an entry that modules add to the state dict has not become what was saved."""
    if not added:
        return
    for name, (own_name, value) in model_entries(model).items():
        if own_name not in added:
            continue
        expected = whole_tensor(saved[name])
        if value.shape != expected.shape or not torch.equal(value.detach().cpu(), expected.cpu()):
            raise KeyMismatchError(
                f"{target} does not load {name}, which its state dict has and {what} has with "
                "another value. Nothing was loaded. Leave the module out of load()"
            )
