"""Sums over logical shards, in the order of the shards, whatever the number of ranks.

::

    round 0                        round 1                       at the end
    rank 0  shard 0 ─┐ all to all  shard 2 ─┐
    rank 1  shard 1 ─┴▶ a slice    shard 3 ─┴▶ a slice           all-gather of the slices
    slice   (s0 + s1)              ((s0 + s1) + s2) + s3

Each rank adds up its slice of all elements. Addition is elementwise, so the bits do not depend on
the sizes of the slices, nor on the number of ranks. The bytes of tensors are sent, so any dtype
works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from ....errors import SpreadError

_BUCKET_BYTES = 32 * 2**20


def exchange_slices(flat: Tensor, ranks: int) -> Tensor:
    """Return this rank's slice of every rank's `flat`, of shape (ranks, elements / ranks)."""
    if ranks == 1:
        return flat.view(1, -1)
    given = torch.empty_like(flat)
    dist.all_to_all_single(given.view(torch.uint8), flat.view(torch.uint8))
    return given.view(ranks, -1)


def join_slices(part: Tensor, ranks: int) -> Tensor:
    """Return the slices of all ranks, joined in the order of ranks."""
    if ranks == 1:
        return part
    whole = part.new_empty(ranks * part.numel())
    dist.all_gather([*whole.view(torch.uint8).chunk(ranks)], part.view(torch.uint8))
    return whole


def add_in_order(total: Tensor | None, given: Tensor, present: int, out: Tensor) -> Tensor:
    """Write ``total + given[0] + given[1] + …``, from left to right, into `out`; return `out`.

    Args:
        total: the sum over earlier rounds; None in the first. May be `out`.
        given: the terms, one for each rank.
        present: how many terms count; the others come from ranks without samples.
        out: gets the sum.
    """
    terms = [*given[:present]]
    if total is not out:
        out.copy_(terms.pop(0) if total is None else total)
    for term in terms:
        out.add_(term)
    return out


@dataclass(eq=False)
class _Bucket:
    """Parameters whose gradients are sent together; they have one dtype and device."""

    indices: list[int] = field(default_factory=list)
    elements: int = 0
    total: Tensor | None = None  # this rank's slice


class ReplicaSums:
    """The gradients of one step, on ranks that have all parameters."""

    def __init__(self, parameters: Sequence[Tensor], ranks: int) -> None:
        self._parameters = parameters
        self._ranks = ranks
        self._used = [False] * len(parameters)
        self._buckets = _fill_buckets(parameters)

    def add(self, value: Tensor | None, present: int) -> None:
        """Add the gradients of `value`, this rank's term of the loss in this round.

        Args:
            value: None if this rank has no samples in this round.
            present: how many ranks have samples.
        """
        gradients: Sequence[Tensor | None] = [None] * len(self._parameters)
        if value is not None:
            gradients = torch.autograd.grad(value, self._parameters, allow_unused=True)
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                _require_dense(gradient)
                self._used[index] = True
        for bucket in self._buckets:
            flat = self._pack(bucket, gradients)
            given = exchange_slices(flat, self._ranks)
            out = given.new_empty(given.size(1)) if bucket.total is None else bucket.total
            bucket.total = add_in_order(bucket.total, given, present, out)

    def finish(self) -> list[Tensor | None]:
        """Return the sums for each parameter; None for those that no logical shard has used."""
        used = torch.tensor(self._used, dtype=torch.uint8, device=self._parameters[0].device)
        if self._ranks > 1:
            dist.all_reduce(used, op=dist.ReduceOp.MAX)
        is_used = used.tolist()
        found: list[Tensor | None] = [None] * len(self._parameters)
        for bucket in self._buckets:
            assert bucket.total is not None
            whole, bucket.total = join_slices(bucket.total, self._ranks), None
            start = 0
            for index in bucket.indices:
                like = self._parameters[index]
                if is_used[index]:
                    found[index] = whole[start : start + like.numel()].view(like.shape)
                start += like.numel()
        return found

    def _pack(self, bucket: _Bucket, gradients: Sequence[Tensor | None]) -> Tensor:
        like = self._parameters[bucket.indices[0]]
        padded = -(-bucket.elements // self._ranks) * self._ranks
        flat = torch.zeros(padded, dtype=like.dtype, device=like.device)
        start = 0
        for index in bucket.indices:
            gradient, size = gradients[index], self._parameters[index].numel()
            if gradient is not None:
                flat[start : start + size].view(gradient.shape).copy_(gradient)
            start += size
        return flat


def _fill_buckets(parameters: Sequence[Tensor]) -> list[_Bucket]:
    open_buckets: dict[object, _Bucket] = {}
    full: list[_Bucket] = []
    for index, parameter in enumerate(parameters):
        key = parameter.dtype, parameter.device
        bucket = open_buckets.setdefault(key, _Bucket())
        bucket.indices.append(index)
        bucket.elements += parameter.numel()
        if bucket.elements * parameter.itemsize >= _BUCKET_BYTES:
            full.append(open_buckets.pop(key))
    return [*full, *open_buckets.values()]


def _require_dense(gradient: Tensor) -> None:
    if gradient.layout is not torch.strided:
        raise SpreadError(
            "a parameter has a sparse gradient, which Exact does not add up in a fixed "
            "order; use Embedding(…, sparse=False)"
        )
