"""The values of all ranks, joined on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from ....errors import RankMismatchError
from ....processes.group.membership import Group, join_group
from ....transfer.containers import Part, children_of, with_children
from ....transfer.leaves import is_inner, leaves_of
from ....transfer.tree import Path, format_path
from ...engines.exact.logical_shards import order_of_ranks
from ...parts.gather import gather
from .exchange import exchange, require_equal
from .gradients import sum_gradients

_CALL = "gather_over_ranks()"
_ONE_A_SAMPLE = ". To give an entry for each sample, use a tensor, or a list without tensors"


def gather_over_ranks(value: Any, *, loader: Any = None) -> Any:
    """Return the values of all ranks, joined into one value of the same structure, on every rank.

    ::

        scores = anyrig.gather_over_ranks(model(x))                # of the global batch

        for x, _ in loader:                                        # from anyrig.distribute()
            scores.append(model(x))
        scores = anyrig.gather_over_ranks(torch.cat(scores), loader=loader)   # of the epoch

    * Tensors are joined along dimension 0 in the order of the ranks, which may have different
      numbers of samples. Other dimensions are padded with zeros. Tensors without dimensions become
      a vector. The results are on the device of this rank's tensor.
    * Lists without tensors are joined like samples; other containers keep their structure.
    * None stays None. Any other object, such as a number or a string, becomes a list with one entry
      for each rank.

    If this rank's tensor requires a gradient, so does the result. A loss over all samples, as in
    contrastive learning, then has the gradient of the global batch. Every rank must compute a loss
    from the result, over all samples or over its own, and call `backward`::

        image, text = anyrig.gather_over_ranks(model(images, texts))
        contrastive(image, text).backward()

    Without `loader`, the samples of a batch from `distribute` are in the order of the global batch.
    One collective carries the bytes of all tensors. Other objects are pickled, so every rank must
    be trusted. A process without a group gets its own value, joined in the same way.

    Args:
        value: any nested structure.
        loader: a loader from `distribute`, or with a `DistributedSampler`. Then `value` has the
            samples of a whole loop. The result has them in the order in which the loader drew
            them, without samples that the sampler repeated as padding.

    Raises:
        RankMismatchError: on every rank, if two ranks differ in structure, or a value cannot be
            sent. The message says which rank, and where.
    """
    group = join_group()
    values = [value] if group is None else exchange(_CALL, value, group)
    own = {place: leaf for place, leaf in leaves_of(value) if isinstance(leaf, Tensor)}
    return _Joining(loader, own, group).join(values)


@dataclass
class _Joining:
    """Joins the values of all ranks. A closure would keep the values until a garbage collection."""

    loader: Any
    own: Mapping[str, Tensor]  # this rank's tensors by their paths
    group: Group | None
    _orders: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def join(self, values: Sequence[Any], path: Path = ()) -> Any:
        if all(isinstance(value, list) for value in values) and not any(
            isinstance(leaf, Tensor) for value in values for _, leaf in leaves_of(value)
        ):
            joined = [entry for value in values for entry in value]
            if self.loader is None:
                return joined
            return [joined[index] for index in self._order(values).tolist()]
        has_tensors = any(isinstance(value, Tensor) for value in values)
        if not has_tensors and not any(map(is_inner, values)):
            return None if all(value is None for value in values) else list(values)
        place = f" at {format_path(path)}"
        require_equal(_CALL, list(map(_describe, values)), place=place)
        if has_tensors:
            own = self.own[format_path(path)]
            parts = [each.detach() for each in values]
            if own.requires_grad and torch.is_grad_enabled():
                parts[0 if self.group is None else self.group.rank] = own
            whole: Tensor = gather(parts, own.device, padding=0.0)
            if self.loader is not None and values[0].dim():
                whole = whole[self._order(values).to(own.device)]
            return (
                whole
                if self.group is None
                else sum_gradients(whole, len(own) if own.dim() else 1, self.group)
            )
        first = children_of(values[0])
        of_ranks = [dict(children_of(container)) for container in values]

        def list_keys(parts: Iterable[Part]) -> str:
            return ", ".join(str(key) for _, key in parts) or "nothing"

        keys = [parts.keys() for parts in of_ranks]
        require_equal(_CALL, keys, list_keys, place, _ONE_A_SAMPLE)
        children = [
            self.join([parts[part] for parts in of_ranks], (*path, part)) for part, _ in first
        ]
        return with_children(values[0], first, children)

    def _order(self, of_ranks: Sequence[Any]) -> Tensor:
        counts = tuple(map(len, of_ranks))
        if counts not in self._orders:
            self._orders[counts] = order_samples(self.loader, counts)
        return self._orders[counts]


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {value.dim()}-dimensional tensor of {dtype}"
    return f"a value of type {type(value).__name__}"


def order_samples(loader: Any, counts: Sequence[int]) -> Tensor:
    """Return the indices that bring samples joined rank by rank into their global order.

    ::

        global batches   0 1 2 3 4 5 │ 6 7        rank 0 had 0 1 2 6 ,  rank 1 had 3 4 5 7
        joined by rank   0 1 2 6 3 4 5 7          indices 0 1 2 4 5 6 3 7 restore the order

    ``counts[i]`` samples are of rank i. Raise RankMismatchError if `loader` gave the ranks
    different numbers, and TypeError if it does not say how samples were divided.
    """
    batches = getattr(loader, "samples_of_batches", None)
    if batches is not None:
        return order_of_batches(batches, counts, getattr(loader, "logical_shards", None))
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, DistributedSampler):
        raise TypeError(
            f"a {type(loader).__name__} does not say which rank had which samples; pass what "
            "anyrig.distribute() returned, or leave loader= out to get the samples rank by rank"
        )
    if set(counts) != {sampler.num_samples}:
        raise RankMismatchError(
            f"the ranks gave {list(counts)} samples, but a whole epoch of the DistributedSampler "
            f"gives each {sampler.num_samples}; gather what was computed from all of its batches"
        )
    # The sampler gives each rank one sample in turn, and begins again to fill the last round.
    order = _order_of(torch.arange(sampler.total_size, device="cpu") % len(counts))
    return order[: len(sampler.dataset)]  # type: ignore[arg-type]


def order_of_batches(
    batches: Sequence[Sequence[int]], counts: Sequence[int], logical_shards: int | None = None
) -> Tensor:
    """Return what `order_samples` does, given how many samples of each batch each rank had."""
    table = torch.tensor([list(batch) for batch in batches], dtype=torch.int64, device="cpu")
    table = table.view(len(batches), len(counts))
    # With `prefetch`, a loader has yielded more batches than were used.
    used = int((table.sum(1).cumsum(0) <= sum(counts)).sum())
    table = table[:used]
    if table.sum(0).tolist() != list(counts):
        raise RankMismatchError(
            f"the ranks gave {list(counts)} samples, but the loader's first batches gave them "
            f"{table.sum(0).tolist()}; gather what was computed from every batch since the loop "
            "began, one entry for each sample"
        )
    if logical_shards is not None:
        sizes = map(sum, batches[:used])
        in_order = [order_of_ranks(size, logical_shards, len(counts)) for size in sizes]
        return _order_of(torch.tensor([*chain.from_iterable(in_order)], device="cpu"))
    ranks = torch.arange(len(counts), device="cpu").repeat(used)
    return _order_of(ranks.repeat_interleave(table.flatten()))


def _order_of(ranks: Tensor) -> Tensor:
    """Return what `order_samples` does, given which rank had each sample."""
    joined = torch.argsort(ranks, stable=True)
    return torch.argsort(joined)
