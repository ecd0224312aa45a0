"""Move a value of any structure to a device."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch

from ..devices.device import Device
from ..devices.place import Place, as_torch_device
from ..devices.rig import Rig
from ..errors import MoveError
from .containers import has_method
from .tree import Path, map_leaves
from .unreachable import refuse_unreachable

T = TypeVar("T")


def move(tree: T, device: Place, non_blocking: bool = False) -> T:
    """Return `tree` with every tensor in it on `device`.

    Structure, sharing and values other than tensors are kept: a tensor that appears twice is copied
    once. A tensor that is already on the device is returned itself. Modules are moved first, and in
    place, as `torch.nn.Module.to` does: a parameter or buffer that also appears elsewhere in the
    tree stays the module's. An object with a method `to` is moved by that method.

    Args:
        tree: a tensor, a module, an object with a method `to`, or containers of these; see
            `anyrig.transfer.tree`.
        device: the target.
        non_blocking: do not wait for copies from pinned memory to an accelerator. A copy to the CPU
            waits nevertheless, since it could be read before it is written; `copy_to_host` does not
            wait.

    Raises:
        MoveError: there is nothing to move; or an object in the tree has tensors that cannot be
            replaced (an optimizer, a generator, a loader, an object without `to`); or a container
            has a cycle or a tensor as a key. In that case nothing has moved.
    """
    if isinstance(tree, (str, Rig, Device, torch.device)) and not isinstance(device, str | int):
        raise MoveError(
            f"{tree!r} is a device, not a value to move: write move(value, device), in this order"
        )
    mover = Mover(resolve_device(device), non_blocking)
    moved: T = mover.map(tree)
    if not mover.moved_any:
        raise MoveError(
            f"there is nothing to move in this {type(tree).__name__}: no tensor, no module and no "
            "object with a method `to`. Make tensors of its numbers first, with torch.as_tensor()"
        )
    return moved


def resolve_device(device: Place) -> torch.device:
    """Return a PyTorch device with its index, as tensors report it; ``cuda`` is the current GPU."""
    resolved = as_torch_device(device)
    if resolved.type == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    if resolved.index is None and accelerator is not None and accelerator.type == resolved.type:
        return torch.device(resolved.type, torch.accelerator.current_device_index())
    return resolved


class Mover:
    """Moves trees to one device and records whether there was anything to move."""

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.moved_any = False
        self._device = device
        self._non_blocking = non_blocking and device.type != "cpu"
        # Tensors of moved modules, before and after, by the id of the tensor before.
        self._replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def map(self, tree: Any) -> Any:
        """Return `tree` on the device; see `move`. After a `MoveError`, nothing has moved."""
        modules: list[torch.nn.Module] = []

        def look(leaf: Any, path: Path) -> Any:
            if isinstance(leaf, torch.nn.Module):
                modules.append(leaf)
            elif not isinstance(leaf, torch.Tensor) and not has_method(leaf, "to"):
                refuse_unreachable(leaf, path)
            return leaf

        map_leaves(tree, look)
        for module in modules:
            self._move_module(module)
        return map_leaves(tree, self._move_leaf)

    def _move_leaf(self, leaf: Any, path: Path) -> Any:
        if isinstance(leaf, torch.nn.Module) or not has_method(leaf, "to"):
            return leaf
        return self._move(leaf)

    def _move_module(self, module: torch.nn.Module) -> None:
        # torch.nn.Module.to writes into parameters where it can, but replaces buffers.
        before = _tensors_of(module)
        self._move(module)
        for name, tensor in _tensors_of(module).items():
            if name in before:
                self._replaced[id(before[name])] = (before[name], tensor)

    def _move(self, value: Any) -> Any:
        self.moved_any = True
        if id(value) in self._replaced:
            return self._replaced[id(value)][1]
        if isinstance(value, torch.Tensor):
            return value.to(self._device, non_blocking=self._non_blocking)
        return move_by_own_method(value, self._device, self._non_blocking)


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def move_by_own_method(value: Any, device: torch.device, non_blocking: bool) -> Any:
    """Call the method `to` of an object, with `non_blocking` only if the method accepts it.

    If the method returns None, it has moved the object in place.
    """
    if non_blocking and _takes_non_blocking(value.to):
        moved = value.to(device, non_blocking=True)
    else:
        moved = value.to(device)
    return value if moved is None else moved


def _takes_non_blocking(method: Any) -> bool:
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature
        return False
    return any(p.name == "non_blocking" or p.kind is p.VAR_KEYWORD for p in parameters)
