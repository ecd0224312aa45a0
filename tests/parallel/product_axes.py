"""The axes of the product that `test_product.py` tries: what goes in, what comes out, how to train.

::

    batch ─▶ read ─▶ two layers ─▶ wrap ─▶ output ─▶ value ─▶ loss ─▶ gradients
    BATCHES                        OUTPUTS                    TRAININGS

Each loss is a mean over samples, so that one device's gradients of the whole batch are defined.
More than 400 lines: the axes meet in one module, which reads any batch and returns any output.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pydantic
import torch
from batch_classes import Entries, Frozen, Graphs, Hidden, Instances, Slotted
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader

import anyrig
from anyrig.parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere

WIDTH = 9  # no number of samples


# --- what goes in ---------------------------------------------------------------------------------


class Named(NamedTuple):
    x: Any
    w: Any


class Sized:
    """Has a `batch_size`, slices and `to`, as tensorclasses have."""

    def __init__(self, x: Tensor, w: Tensor) -> None:
        self.x, self.w = x, w

    @property
    def batch_size(self) -> torch.Size:
        return self.x.shape[:1]

    def __getitem__(self, index: slice) -> Any:
        return Sized(self.x[index], self.w[index])

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        return Sized(self.x.to(device), self.w.to(device))


class OwnMapping(UserDict[str, Any]):
    """A mapping that is no dict."""


class Validated(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    x: Tensor
    w: Tensor


def _weighted(x: Tensor, w: Tensor) -> Tensor:
    return x * w[:, None]


def _of_fields(batch: Any) -> Tensor:
    return _weighted(batch.x, batch.w)


def _of_keys(batch: Any) -> Tensor:
    return _weighted(batch["x"], batch["w"])


def _of_texts(x: Tensor, texts: list[str]) -> Tensor:
    assert len(texts) == len(x)
    return _weighted(x, x.new_tensor([float(text) for text in texts]))


def _of_entries(batch: list[dict[str, Tensor]]) -> Tensor:
    if not batch:
        return torch.empty(0, WIDTH)
    return torch.stack([entry["x"] * entry["w"] for entry in batch])


def _lengths(w: Tensor) -> Tensor:
    """Return the length of each sample, one or two, wherever it lies in a batch."""
    return (w > 1.5).long() + 1


def _graphs(x: Tensor, w: Tensor) -> Graphs:
    sizes = _lengths(w).tolist()
    return Graphs(
        x.repeat_interleave(torch.tensor(sizes, dtype=torch.int64, device=x.device), 0), w, sizes
    )


def _of_graphs(batch: Graphs) -> Tensor:
    return _weighted(batch.pooled(), batch.w)


def _packed(x: Tensor, w: Tensor) -> PackedSequence:
    both = torch.stack([x, x * w[:, None]], 1)
    return pack_padded_sequence(both, _lengths(w).cpu(), batch_first=True, enforce_sorted=False)


def _of_packed(batch: PackedSequence) -> Tensor:
    padded, _ = pad_packed_sequence(batch, batch_first=True, total_length=2)
    return padded.sum(1)


def _nested(x: Tensor, w: Tensor) -> Tensor:
    parts = [row.expand(n, -1) for row, n in zip(_weighted(x, w), _lengths(w), strict=True)]
    return torch.nested.as_nested_tensor(parts)


def _of_nested(batch: Tensor) -> Tensor:
    return torch.nested.to_padded_tensor(batch, 0.0, (batch.size(0), 2, WIDTH)).sum(1)


@dataclass(frozen=True)
class BatchClass:
    """A class of batches.

    Attributes:
        make: returns the arguments of a call for tensors of shapes (n, WIDTH) and (n,).
        read: what the module computes of the arguments: shape (n, WIDTH).
        says: whether the call has ``samples=``.
        from_loader: whether the batches come from ``distribute(loader)``.
    """

    make: Callable[[Tensor, Tensor], tuple[Any, ...]]
    read: Callable[..., Tensor]
    says: bool = False
    from_loader: bool = False


def _one(kind: Callable[[Tensor, Tensor], Any], read: Callable[[Any], Tensor], **o: Any) -> Any:
    return BatchClass(lambda x, w: (kind(x, w),), read, **o)


BATCHES: dict[str, BatchClass] = {
    "tensors": BatchClass(lambda x, w: (x, w), _weighted),
    "tuple": _one(lambda x, w: (x, w), lambda batch: _weighted(batch[0], batch[1])),
    "dict": _one(lambda x, w: {"x": x, "w": w}, _of_keys),
    "strings beside a tensor": BatchClass(
        lambda x, w: (x, [repr(value) for value in w.tolist()]), _of_texts
    ),
    "dataclass": _one(Frozen, _of_fields),
    "named tuple": _one(Named, _of_fields),
    "attrs": _one(Slotted, _of_fields),
    "pydantic": _one(lambda x, w: Validated(x=x, w=w), _of_fields),
    "batch_size and to": _one(Sized, _of_fields),
    "length and slices": _one(Instances, _of_fields),
    "mapping": _one(lambda x, w: OwnMapping(x=x, w=w), _of_keys),
    "mapping with batch_size": _one(lambda x, w: Entries({"x": x, "w": w}, [len(x)]), _of_keys),
    "num_graphs": _one(_graphs, _of_graphs),
    "packed sequence": _one(_packed, _of_packed),
    "nested tensor": _one(_nested, _of_nested),
    "list of dicts": _one(
        lambda x, w: [{"x": a, "w": b} for a, b in zip(x, w, strict=True)], _of_entries
    ),
    "own class": _one(Hidden, _of_fields),
    "own class and samples=": _one(Hidden, _of_fields, says=True),
    "own class of a loader": _one(Hidden, _of_fields, from_loader=True),
}


# --- what comes out -------------------------------------------------------------------------------


class ModelOutput(OrderedDict[str, Any]):
    """Like transformers' ModelOutput: entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


@dataclass(frozen=True)
class OutputClass:
    """What a module returns.

    Attributes:
        wrap: returns the output, given the module and its last layer's output of shape (n, 1).
        value: what the loss is computed of, given the output and the module: shape (n, 1), or a
            number.
    """

    wrap: Callable[[Any, Tensor], Any]
    value: Callable[[Any, Any], Tensor]


def _keep(module: Any, y: Tensor) -> Tensor:
    module.kept = y.square()
    return y


def _keep_mean(module: Any, y: Tensor) -> Tensor:
    module.kept = y.square().mean()
    return y


OUTPUTS: dict[str, OutputClass] = {
    "tensor": OutputClass(lambda module, y: y, lambda output, module: output),
    "tuple": OutputClass(lambda module, y: (y.sin(), {"y": y}), lambda o, module: o[0] + o[1]["y"]),
    "dict": OutputClass(lambda module, y: {"y": y, "k": 3}, lambda o, module: o["y"]),
    "dataclass": OutputClass(lambda module, y: Frozen(y, None), lambda o, module: o.x),
    "model output": OutputClass(lambda module, y: ModelOutput(y=y), lambda o, module: o.y),
    "own class": OutputClass(lambda module, y: Hidden(y, None), lambda o, module: o.x),
    "own class with cat": OutputClass(lambda module, y: Instances(y, y), lambda o, module: o.x),
    "set": OutputClass(lambda module, y: {y}, lambda o, module: next(iter(o))),
    "list": OutputClass(lambda module, y: [y, y.exp()], lambda o, module: o[0] + o[1]),
    "number": OutputClass(lambda module, y: y.square().mean(), lambda o, module: o),
    "numbers in a dict": OutputClass(
        lambda module, y: {"loss": y.square().mean(), "y": y}, lambda o, module: o["loss"]
    ),
    "attribute": OutputClass(_keep, lambda o, module: module.kept),
    "number in an attribute": OutputClass(_keep_mean, lambda o, module: module.kept),
    "generator": OutputClass(lambda module, y: (each for each in [y]), lambda o, module: next(o)),
    "closure": OutputClass(lambda module, y: lambda: y, lambda o, module: o()),
}


# --- how it is trained ----------------------------------------------------------------------------


class Batch(NamedTuple):
    """One call: its arguments, the leaf that they were made of, the targets, `samples=`."""

    inputs: tuple[Any, ...]
    x: Tensor
    t: Tensor
    named: dict[str, Any]


def mean_loss(value: Tensor, t: Tensor) -> Tensor:
    return (value - t.to(value.device)).square().mean() if value.dim() else value


class CountedLoss(nn.Module):
    """A loss of a custom class, over some of the samples: a sum and its divisor."""

    def __init__(self, value: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.value = value

    def forward(self, output: Any, target: Tensor) -> Any:
        value, counted = self.value(output), target > 0
        if not value.dim():
            return value * len(target), torch.tensor(len(target), device=value.device)
        return ((value - target).abs() * counted).sum(), counted.sum()


@dataclass(frozen=True)
class Training:
    """How a step computes gradients.

    Attributes:
        step: computes the gradients of a model for batches; `value` reads an output.
        micro_batches: the number of batches in a step.
        loss: makes what `spread` is given as ``loss=``, from `value`.
        returns: whether `step` returns the gradients, of the parameters that are used.
    """

    step: Callable[[Any, Callable[[Any], Tensor], list[Batch]], Any]
    micro_batches: int = 1
    loss: Callable[[Callable[[Any], Tensor]], Any] | None = None
    returns: bool = False


def _loss(model: Any, value: Callable[[Any], Tensor], batch: Batch) -> Tensor:
    return mean_loss(value(model(*batch.inputs, **batch.named)), batch.t)


def _total(model: Any, value: Callable[[Any], Tensor], batch: Batch) -> Tensor:
    found = value(model(*batch.inputs, **batch.named))
    return found.sum() if found.dim() else found * len(batch.x)


def _forward(model: Any, value: Any, batches: list[Batch]) -> None:
    _loss(model, value, batches[0]).backward()


def _method(model: Any, value: Any, batches: list[Batch]) -> None:
    (batch,) = batches
    model.training_step(*batch.inputs, t=batch.t, **batch.named).backward()


def _penalty(model: Any, value: Any, batches: list[Batch]) -> None:
    (batch,) = batches
    _loss(model, value, batch).backward()
    total = _total(model, value, batch)
    (gradient,) = torch.autograd.grad(total, batch.x, create_graph=True)
    (gradient.norm(dim=1) - 1).square().mean().backward()


def _double_backward(model: Any, value: Any, batches: list[Batch]) -> None:
    (batch,) = batches
    total = _total(model, value, batch)
    (first,) = torch.autograd.grad(total, batch.x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), batch.x, create_graph=True)
    (first.square().sum(1) + second.square().sum(1)).mean().backward()


def _accumulate(model: Any, value: Any, batches: list[Batch]) -> None:
    first, last = batches
    with getattr(model, "no_sync", contextlib.nullcontext)():
        _loss(model, value, first).backward()
    _loss(model, value, last).backward()


def _fused(model: Any, value: Any, batches: list[Batch]) -> None:
    (batch,) = batches
    model(*batch.inputs, target=batch.t, **batch.named).backward()


def _grad(model: Any, value: Any, batches: list[Batch]) -> Any:
    used = [
        each
        for name, each in model.named_parameters()
        if "unused" not in name and not isinstance(each, Elsewhere)
    ]
    return torch.autograd.grad(_loss(model, value, batches[0]), used)


def _mean_over_targets(value: Callable[[Any], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Return a loss that ignores some targets; a value that is a number already is the loss."""

    def loss(output: Any, target: Tensor) -> Tensor:
        found = value(output)
        if not found.dim():
            return found
        scores = torch.cat([found, torch.zeros_like(found)], 1)
        classes = torch.where(target[:, 0].to(found.device) > 0, 1, -100)
        return nn.functional.cross_entropy(scores, classes) + 0.1 * found.square().mean()

    return loss


TRAININGS: dict[str, Training] = {
    "forward": Training(_forward),
    "method": Training(_method),
    "penalty": Training(_penalty),
    "double backward": Training(_double_backward),
    "accumulation": Training(_accumulate, micro_batches=2),
    "own loss": Training(_fused, loss=CountedLoss),
    "loss=": Training(_fused, loss=lambda value: lambda o, t: mean_loss(value(o), t)),
    "loss= over targets": Training(_fused, loss=_mean_over_targets),
    "autograd.grad": Training(_grad, returns=True),
}


# --- where, and how many samples ------------------------------------------------------------------

# The shares of processes on the CPU, all but one started by this one.
PROCESSES: dict[str, tuple[float, ...]] = {
    "2 processes": (1, 1),
    "3 processes as 3:2:1": (3, 2, 1),
}
# The shares of virtual devices in this process; None for the ranks of a group.
DEVICES: dict[str, tuple[float, ...] | None] = {
    "1": (1,),
    "2": (1, 1),
    "3 as 3:2:1": (3, 2, 1),
    **PROCESSES,
    "ranks": None,
    "shards": None,
    "pipeline": (1, 1),
    "pipeline over ranks": None,
}

# How many samples each of two ranks has; one process has them all.
ROWS: dict[str, tuple[int, int]] = {
    "even": (3, 3),
    "uneven": (5, 2),
    "one": (0, 1),
    "none": (4, 0),
    "nothing": (0, 0),
}


class Net(nn.Module):
    """Reads its batch, and returns what an output class makes of it; has an unused layer."""

    def __init__(self, read: Callable[..., Tensor], output: OutputClass) -> None:
        super().__init__()
        self.read, self.output = read, output
        self.first, self.last = nn.Linear(WIDTH, 5), nn.Linear(5, 1)
        self.unused = nn.Linear(2, 2)
        self.kept: Any = None

    def forward(self, *inputs: Any) -> Any:
        y = self.last(torch.tanh(self.first(self.read(*inputs))))
        return self.output.wrap(self, y)

    def training_step(self, *inputs: Any, t: Tensor) -> Tensor:
        return mean_loss(self.output.value(self(*inputs), self), t)


def given_batches(kind: BatchClass, x: Tensor, w: Tensor, t: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield (batch, targets) from ``distribute(loader)``, one for all samples."""

    def collate(rows: list[tuple[Tensor, Tensor, Tensor]]) -> Any:
        own = [torch.stack(column) for column in zip(*rows, strict=True)]
        return (*kind.make(own[0], own[1]), own[2])

    def none() -> Any:
        return (*kind.make(x[:0].clone(), w[:0]), t[:0])

    data = [*zip(x, w, t, strict=True)]
    loader = DataLoader(data, batch_size=len(data), collate_fn=collate)  # type: ignore[arg-type]
    return iter(anyrig.distribute(loader, empty=none))
