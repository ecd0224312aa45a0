"""Classes of batches that obey the protocols of public libraries, without these libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class Hidden:
    """Has tensors in attributes, and nothing that says so."""

    def __init__(self, x: Any, w: Any) -> None:
        self.x, self.w = x, w


class Movable(Hidden):
    """Can be moved, but does not say how many samples it has."""

    def to(self, device: Any) -> Any:
        return type(self)(self.x.to(device), self.w.to(device))


class Instances(Movable):
    """Like Detectron2's Instances: a length, slices, and `cat`."""

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: slice) -> Any:
        return type(self)(self.x[index], self.w[index])

    @classmethod
    def cat(cls, parts: list[Any]) -> Any:
        return cls(torch.cat([part.x for part in parts]), torch.cat([part.w for part in parts]))


class WithoutSlices(Movable):
    """Has a length, but gives single samples only, as Detectron2's ImageList does."""

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, slice):
            raise TypeError("no slices")
        return self.x[index]


class Slotted:
    """Like a class of attrs with slots; frozen."""

    __attrs_attrs__ = ("x", "w")
    __slots__ = ("w", "x")

    def __init__(self, x: Any, w: Any) -> None:
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "w", w)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} is frozen")


@dataclass(frozen=True)
class Frozen:
    x: Any
    w: Any


@dataclass
class MovableFields:
    """A dataclass with a method `to`."""

    x: Any
    w: Any

    def to(self, device: Any) -> Any:
        return MovableFields(self.x.to(device), self.w.to(device))


class Graphs:
    """Like a Batch of PyTorch Geometric: samples of different sizes, which its class joins."""

    def __init__(self, x: Tensor, w: Tensor, sizes: list[int]) -> None:
        self.x, self.w, self.sizes = x, w, sizes

    @property
    def num_graphs(self) -> int:
        return len(self.sizes)

    def to_data_list(self) -> list[Any]:
        return list(zip(self.x.split(self.sizes), self.w, strict=True))

    @classmethod
    def from_data_list(cls, graphs: list[Any]) -> Any:
        xs, ws = zip(*graphs, strict=True)
        return cls(torch.cat(xs), torch.stack(ws), [len(x) for x in xs])

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        self.x, self.w = self.x.to(device), self.w.to(device)  # in place, as theirs
        return self

    def pooled(self) -> Tensor:
        return torch.stack([part.sum(0) for part in self.x.split(self.sizes)])


class Entries(dict[str, Any]):
    """Like a TensorDict: a mapping with a batch size, whose length is that."""

    def __init__(self, entries: dict[str, Any], batch_size: Any) -> None:
        super().__init__(entries)
        self.batch_size = torch.Size(batch_size)

    batch_size = torch.Size(())

    def __len__(self) -> int:
        return self.batch_size[0] if self.batch_size else 0

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return super().__getitem__(key)
        parts = {name: value[key] for name, value in self.items()}
        return Entries(parts, torch.empty(self.batch_size, device="meta")[key].shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def clone(self, recurse: bool = True) -> Any:
        return Entries(dict(self.items()), self.batch_size)

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        return Entries({name: value.to(device) for name, value in self.items()}, self.batch_size)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        assert function is torch.cat
        parts, dim = args
        joined = {name: torch.cat([part[name] for part in parts], dim) for name in parts[0]}
        size = list(parts[0].batch_size)
        size[dim] = sum(part.batch_size[dim] for part in parts)
        return Entries(joined, size)
