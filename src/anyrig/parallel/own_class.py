"""Parameters and buffers of a custom class, such as the quantised weights of torchao.

::

    wraps tensors           TwoTensor, torchao's weights     no memory of its own
    has tensors beside it   bitsandbytes' Params4bit         codes, and scales in attributes

Such a tensor is copied as a whole, by its own ``to``, and only if nothing trains it: only its class
knows how to add up the gradients of two copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import SpreadError
from ..transfer.inner_tensors import class_of, flatten_wrapper, is_wrapper


class OwnClass(NamedTuple):
    """A parameter or buffer of a custom class: its full name, its layer, and the tensor."""

    name: str
    layer: nn.Module
    tensor: Tensor

    def __str__(self) -> str:
        return f"{self.name} of a {type(self.layer).__name__} is a {class_of(self.tensor)}"


def has_own_class(tensor: Tensor) -> bool:
    """Return whether a tensor is more than its elements: copying these would lose the rest."""
    return is_wrapper(tensor) or type(tensor).to is not Tensor.to


def find_own_class(module: nn.Module) -> Iterator[OwnClass]:
    """Yield the parameters and buffers of a custom class."""
    for prefix, layer in module.named_modules():
        for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
            if tensor is not None and has_own_class(tensor):
                yield OwnClass(f"{prefix}.{name}".lstrip("."), layer, tensor)


def require_frozen(module: nn.Module) -> None:
    """Raise SpreadError if replicas cannot have copies of a tensor of a custom class."""
    for found in find_own_class(module):
        if found.tensor.requires_grad or not isinstance(found.tensor, nn.Parameter):
            raise SpreadError(
                f"{found}, which wraps or carries other tensors, and it is not a frozen parameter. "
                "Replicas copy only frozen ones: call requires_grad_(False) on it, and train "
                "adapters; or use plan=Pipeline() in one process"
            )


def refuse_own_class(module: nn.Module, way: str) -> None:
    """Raise SpreadError if a module has tensors of a custom class."""
    for found in find_own_class(module):
        raise SpreadError(
            f"{found}, which wraps or carries other tensors, and {way} would lose them. Use "
            "plan=Replicas(), or plan=Pipeline() in one process; or quantise nothing"
        )


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a frozen tensor on a device, with whatever it carries."""
    if is_wrapper(tensor):
        moved = tensor.detach().to(device)
        return nn.Parameter(moved, False) if isinstance(tensor, nn.Parameter) else moved
    # Of a copy, because Params4bit's ``to`` moves the quantisation state of the original.
    return _with_empty_attributes(copy.deepcopy(tensor).to(device), tensor)


def move_whole(tensor: Tensor, device: torch.device) -> None:
    """Move a tensor to a device; it remains the same object."""
    moved = tensor.to(device)
    if moved is tensor:
        return
    if is_wrapper(tensor):
        if isinstance(tensor, nn.Parameter):
            moved = nn.Parameter(moved.detach(), tensor.requires_grad)
        gradient, tensor.grad = tensor.grad, None
        torch.utils.swap_tensors(tensor, moved)  # type: ignore[no-untyped-call]
        tensor.grad = gradient
    else:
        moved = _with_empty_attributes(moved, tensor)
        tensor.data = moved.data
        vars(tensor).update(vars(moved))


def _with_empty_attributes(moved: Tensor, tensor: Tensor) -> Tensor:
    """Empty the attributes that `tensor` has empty: its layer has taken what they held."""
    vars(moved).update({name: None for name, value in vars(tensor).items() if value is None})
    return moved


def carried_objects(layer: nn.Module) -> dict[str, Any]:
    """Return the attributes in which a layer keeps tensors, or will, such as Linear8bitLt's
    ``state``: the objects of the layer's own library.
    """
    library = _library_of(layer)
    return {
        name: value
        for name, value in vars(layer).items()
        if _library_of(value) == library
        and hasattr(value, "__dict__")
        and not isinstance(value, (Tensor, nn.Module, type))
        and not callable(value)
    }


def _library_of(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def copy_object(value: Any, device: torch.device) -> Any:
    """Return a shallow copy of an object, with its tensors on a device."""
    made = copy.copy(value)
    for name, each in vars(value).items():
        if isinstance(each, Tensor):
            setattr(made, name, each.to(device))
    return made


def move_objects(layer: nn.Module, device: torch.device) -> None:
    """Move the tensors that a layer's attributes carry."""
    for value in carried_objects(layer).values():
        for name, each in vars(value).items():
            if isinstance(each, Tensor) and each.device != device:
                setattr(value, name, each.to(device))


def move_module(module: nn.Module, device: torch.device) -> None:
    """Move a module in place; `torch.nn.Module.to` alone leaves what some parameters carry."""
    module.to(device)
    with torch.no_grad():
        for own in list(find_own_class(module)):
            move_whole(own.tensor, device)
            move_objects(own.layer, device)


def carried_values(tensor: Tensor) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a tensor by their names, and those of the objects among them that
    describe a quantisation, such as ``"quant_state.absmax"``.
    """
    waiting = sorted(vars(tensor).items())
    while waiting:
        name, value = waiting.pop(0)
        if hasattr(type(value), "from_dict"):  # bitsandbytes' QuantState, which may be nested
            waiting += [(f"{name}.{key}", each) for key, each in sorted(vars(value).items())]
        else:
            yield name, value


def plain_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors that make a tensor's value; they share its memory."""
    if is_wrapper(tensor):
        return [each for _, each in flatten_wrapper("", tensor)]
    if not has_own_class(tensor):
        return [tensor]
    carried = (value for _, value in carried_values(tensor))
    return [tensor.data, *(value for value in carried if isinstance(value, Tensor))]


def states_of(module: nn.Module) -> list[Tensor]:
    """Return the plain tensors of a module's parameters and buffers, and what layers carry.

    The order does not depend on whether a layer has taken over what its weight carried, as
    bitsandbytes' 8-bit layers do in their first forward pass.
    """
    layers = {id(own.tensor): own.layer for own in find_own_class(module)}
    found: list[Tensor] = []
    for tensor in (*module.parameters(), *module.buffers()):
        parts = plain_tensors(tensor)
        if id(tensor) in layers:
            for value in carried_objects(layers[id(tensor)]).values():
                parts += [each for each in vars(value).values() if isinstance(each, Tensor)]
            parts = list({(each.data_ptr(), each.shape): each for each in parts}.values())
        found += parts
    return found


class WholeCopies:
    """The copies of a layer's tensors of a custom class, on one device each.

    A copy is made again when the tensor, or what it carries, was replaced or written.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[int, str], tuple[list[Any], Any]] = {}

    def forget(self) -> None:
        """Make all copies again when they are wanted next."""
        self._made.clear()

    def of_tensor(self, device: int, name: str, tensor: Tensor, place: torch.device) -> Any:
        """Return the copy of a tensor for the device at a position."""
        look = [tensor, *vars(tensor).values(), *_versions([tensor, *plain_tensors(tensor)])]
        return self._copy(device, name, look, lambda: copy_to(tensor, place))

    def of_object(self, device: int, name: str, value: Any, place: torch.device) -> Any:
        """Return the copy of an object that carries tensors."""
        tensors = [each for each in vars(value).values() if isinstance(each, Tensor)]
        look = [value, *tensors, *_versions(tensors)]
        return self._copy(device, name, look, lambda: copy_object(value, place))

    def _copy(self, device: int, name: str, look: list[Any], make: Callable[[], Any]) -> Any:
        before, made = self._made.get((device, name), ([], None))
        same = len(before) == len(look) and all(
            one is other or (type(one) is int and one == other)
            for one, other in zip(before, look, strict=True)
        )
        if not same:
            made = make()
            self._made[device, name] = look, made
        return made


def _versions(tensors: list[Tensor]) -> list[int]:
    return [-1 if each.is_inference() else each._version for each in tensors]
