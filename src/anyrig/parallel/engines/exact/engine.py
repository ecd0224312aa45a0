"""The same bits on any number of ranks.

::

    model(x, target=y)                      on each rank, for its logical shards in turn
      ├─ module, loss, backward pass        random numbers follow from (seed, step, logical shard)
      ├─ add_in_order                       gradients, over all ranks              sums.py
      └─ the loss of the global batch       sums / counts, added in order
    loss.backward()                         hands the gradients to the parameters
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ....errors import BatchError, ShardSaveError, SpreadError
from ....processes.group.membership import current_context, open_carrier
from ....transfer.move import Mover
from ....transfer.tree import list_leaves, map_leaves
from ...compiling import leave_to_modules
from ...layout import Layout
from ...losses.checked_means import CheckedCalls
from ...losses.delivery import Delivery, deliver, scale
from ...losses.even_means import rate_of_targets, require_even
from ...losses.loss import Criterion, criterion_on, loss_part
from ...losses.loss_part import LossPart
from ...losses.mistakes import explain_call
from ...losses.own_loss import HalvesCheck
from ...losses.same_by_halves import compare_part
from ...losses.whole import sums_of, whole_of
from ...marks import tensors_with_gradients
from ...named_arguments import take_target
from ...parts.samples import count_listed, count_samples, find_sample_count, name_argument
from ...parts.scatter import divide, exactly
from ...ranks.exchange import Exchange, Phase
from ...ranks.loaders.agreed_order import mix_seed
from ...ranks.without_samples import compute_without_samples, first_samples
from ..engine import Engine
from .conditions import (
    WatchedBuffers,
    conditions_of_shard,
    require_no_batch_statistics,
    require_one_thread,
)
from .logical_shards import count_present, shard_sizes
from .state import ExactState
from .sums import ReplicaSums, join_slices

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class ExactEngine(Engine):
    """Computes a global batch in logical shards, and adds up their gradients in order.

    A call with ``target=`` returns the loss of the global batch on every rank. The gradients are
    complete then, and `backward` hands them out. A call without a target, under
    `torch.no_grad()`, returns the outputs of this rank's samples.

    Args:
        module: the module, on this rank's device and the same on every rank; or in shards.
        layout: how the module was spread, and why.
        loss: a criterion, as for `anyrig.spread`.
        state: the number of logical shards, and the random numbers.
    """

    loss: Criterion

    def __init__(
        self, module: torch.nn.Module, layout: Layout, loss: Criterion, state: ExactState
    ) -> None:
        super().__init__(module, layout, loss)
        self.state = state
        self._checked, self._sample = CheckedCalls(), None
        self._number = self._calls = 0
        self._sums: ShardedSums | None = None
        self._known: list[torch.nn.Parameter] = []
        if layout.group is not None:
            context = current_context()
            open_carrier(context)
            context.counts["models"] += 1
            self._number = context.counts["models"]
        if layout.way == "shards":
            from .sharded_sums import ShardedSums

            # FSDP2 replaces the parameters while it computes, so keep the shards here.
            self._sums, self._known = ShardedSums(module), [*module.parameters()]

    def forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the loss of the global batch, or without ``target=`` the outputs."""
        if torch.compiler.is_compiling():
            leave_to_modules()
        require_one_thread(self.layout.lead)
        call = self._global_loss if "target" in kwargs else self._outputs
        try:
            return call(inputs, kwargs)
        except TypeError as error:
            explain_call(error, self.module, inputs, kwargs)
            raise
        finally:
            if self._sums is not None:
                self._sums.reshard()

    def join(self) -> AbstractContextManager[None]:
        """Do nothing on one rank; raise SpreadError over several."""
        if self.layout.group is not None and self.layout.group.world_size > 1:
            raise SpreadError(
                "every rank computes its logical shards of each batch, so none can end before the "
                "others; anyrig.distribute(loader, model) gives all ranks equally many batches"
            )
        return self.no_sync()

    def _parameters_to_learn(self) -> list[torch.nn.Parameter]:
        known = self._known or self.module.parameters()
        return [parameter for parameter in known if parameter.requires_grad]

    def _outputs(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.is_grad_enabled() and self._parameters_to_learn():
            raise SpreadError(
                "a model with the plan Exact computes gradients shard by shard, so it needs the "
                "loss: call model(x, target=y), which returns the loss of the global batch; or "
                "compute outputs under torch.no_grad()"
            )
        inputs, kwargs = Mover(self.layout.lead, non_blocking=True).map((inputs, kwargs))
        with self.layout.computing():
            if find_sample_count((inputs, kwargs), self.layout.dim) == 0:
                return self._stand_in((inputs, kwargs))
            return self.module(*inputs, **kwargs)

    def _global_loss(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        layout, state = self.layout, self.state
        rank, ranks = (
            (0, 1) if layout.group is None else (layout.group.rank, layout.group.world_size)
        )
        parameters = self._parameters_to_learn() if torch.is_grad_enabled() else []
        require_no_batch_statistics(self.module.modules())
        given = self._bring(inputs, kwargs, bool(parameters))
        sizes = self._divide(given)
        own = sizes[rank::ranks]
        parts = divide(
            given, [layout.lead] * len(own), exactly(own), layout.dim, name_argument, is_call=True
        ).values
        sharded = self._sums
        sums: Any = None
        if parameters:
            state.step += 1
            sums = sharded or ReplicaSums(parameters, ranks)
        buffers = WatchedBuffers(self.module)
        if sharded is not None and parameters:
            sharded.begin(parameters)
        found: list[LossPart | None] = []
        try:
            for turn, part in enumerate(parts):
                present = count_present(sizes, turn, ranks)
                if not present:
                    break
                seed = mix_seed(state.seed, state.step, turn * ranks + rank)
                with conditions_of_shard(layout.lead, seed):
                    value, loss = self._compute(part, own[turn], sharded is not None)
                    found.append(loss)
                    if sums is not None:
                        sums.add(value, present)
            buffers.require_unchanged()
            gradients = [] if sums is None else sums.finish()
        except BaseException:
            if sharded is not None and parameters:
                sharded.abandon()
            raise
        whole, divisor = self._add_losses(found, sizes, ranks)
        if not parameters:
            return whole
        return deliver(_Kept(whole, divisor, gradients), parameters)[0]

    def _bring(self, inputs: tuple[Any, ...], kwargs: dict[str, Any], learns: bool) -> Any:
        given = Mover(self.layout.lead, non_blocking=True).map((inputs, kwargs))
        if learns and any(
            isinstance(leaf, Tensor) and leaf.requires_grad for leaf, _ in list_leaves(given)
        ):
            raise SpreadError(
                "an input requires a gradient, which Exact does not compute. Compute "
                "the input inside the spread module; or detach() it"
            )
        return given

    def _divide(self, given: Any) -> list[int]:
        """Return the sizes of all logical shards, after a meeting of the ranks."""
        layout, shards = self.layout, self.state.logical_shards
        samples = count_samples(given, layout.dim, name_argument)
        if samples is None or count_listed(*given) is not None:
            raise BatchError(
                "Exact divides tensors along the dimension of samples, but this call has "
                "its samples in lists, or has none; pass tensors, padded if necessary"
            )
        context = None if layout.group is None else current_context()
        of_ranks = [samples]
        if context is not None:
            self._calls += 1
            exchange = Exchange(context, self._number, samples, own_loss=True, forward=self._calls)
            exchange.start(Phase.FORWARD, learns=torch.is_grad_enabled())
            exchange.finish()
            of_ranks = exchange.samples_of_ranks
            if shards not in context.logical_shards:
                raise SpreadError(
                    "no loader gives this rank logical shards. Iterate over "
                    "anyrig.distribute(loader, model)"
                )
        sizes = shard_sizes(sum(of_ranks), shards)
        if not sizes[0]:
            raise BatchError("the global batch has no samples, so it has no loss")
        for rank, given_to in enumerate(of_ranks):  # all ranks raise, so none waits for another
            needed = sum(sizes[rank :: len(of_ranks)])
            if given_to != needed:
                raise BatchError(
                    f"rank {rank} was given {given_to} of {sum(of_ranks)} samples, but its logical "
                    f"shards have {needed}. Iterate over anyrig.distribute(loader, "
                    "model), and pass each batch unchanged"
                )
        return sizes

    def _compute(self, part: Any, samples: int, sharded: bool) -> tuple[Tensor | None, Any]:
        """Return this rank's term of the loss in this round, or None; and its `LossPart`."""
        if not samples and not sharded:
            return None, None
        # Copy the part: kernels may depend on how it lies in memory.
        inputs, kwargs = map_leaves(
            part, lambda leaf, _: leaf.clone() if isinstance(leaf, Tensor) else leaf
        )
        whole, dim, lead = (inputs, {**kwargs}), self.layout.dim, self.layout.lead
        target = take_target(self.module, inputs, kwargs)
        with self.layout.computing():
            # Shards are gathered by all ranks together, so a rank does not compute once more.
            if not sharded and self._checked.note_halves(kwargs, samples):
                compare_part(self.module, self.loss, whole, samples, dim, lead)
            if not samples:
                leaves = tensors_with_gradients(self._stand_in((inputs, kwargs)))
                terms = [leaf.reshape(-1)[:0].sum() for leaf in leaves]
                return torch.stack(terms).sum() if terms else None, None
            if sharded and self._sample is None:
                self._sample = first_samples((inputs, kwargs), 1, self.layout.dim)
            output = self.module(*inputs, **kwargs)
            criterion = criterion_on(self.loss, self.layout.lead)
            is_first = self._checked.note_loss(samples)
            check = HalvesCheck(self.layout.dim, may_read_module=True) if is_first else None
            loss = loss_part(criterion, output, target, samples, check)
        if not loss.reduced:
            raise BatchError(
                "the loss returns a loss for each sample, but Exact needs one number: "
                "return a mean or (sum, count)"
            )
        return loss.value, loss.detach()

    def _stand_in(self, given: Any) -> Any:
        """Compute without samples, so that this rank takes part in FSDP2's collectives."""
        return compute_without_samples(
            self.module,
            self.module,
            given,
            self._sample,
            self.layout.dim,
        )

    def _add_losses(
        self, found: Sequence[LossPart | None], sizes: Sequence[int], ranks: int
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of the global batch, and what divides the gradients of its sum."""
        nothing = sums_of((), self.layout.lead)
        numbers = nothing.new_zeros(len(sizes) // ranks, 6)
        for row, part in zip(numbers, found, strict=False):
            if part is not None:
                rate = rate_of_targets(part)
                row[:3] = sums_of([part], self.layout.lead)
                row[3], row[4] = _DTYPES.index(part.dtype), 0 if rate is None else rate
                row[5] = part.skips
        of_ranks = join_slices(numbers.view(-1), ranks).view(ranks, -1, 6)
        present = sum(size > 0 for size in sizes)
        in_order = of_ranks.transpose(0, 1).reshape(-1, 6)[:present]
        first = found[0] if found else None
        dtype = _DTYPES[int(in_order[0, 3])] if first is None else first.dtype
        if first is None or first.targets:
            require_even(in_order[:, 4].tolist())
        whole, divisor = whole_of(in_order.sum(0))
        # If nothing counts, gradients are zero, and the loss is NaN; see `divisor_of_gradients`.
        is_empty = (divisor == 0) & in_order[:, 5].all()
        return whole.to(dtype), torch.where(is_empty, 1, divisor)

    def refuse_pickle(self) -> None:
        """Raise ShardSaveError if this rank has only shards."""
        if self.layout.way == "shards":
            from ..fsdp import explain_saving

            raise ShardSaveError(explain_saving(dist.get_world_size()))


class _Kept(Delivery):
    """The loss, and the gradients of the sum of the losses, on this rank's device."""

    no_graph = (
        "the plan Exact has computed the gradients already, so create_graph=True has no graph of "
        "them; leave it out"
    )

    def __init__(self, whole: Tensor, divisor: Tensor, gradients: list[Tensor | None]) -> None:
        self._whole, self._divisor, self._gradients = whole, divisor, gradients

    def forward(self) -> tuple[list[Tensor], list[bool]]:
        return [self._whole], [True]

    def backward(self, upstream: Sequence[Tensor | None], keeps: bool) -> Sequence[Tensor | None]:
        (given,) = upstream
        if given is None:
            return [None] * len(self._gradients)
        factor = given.to(self._divisor.dtype) / self._divisor
        return scale(self._gradients, factor, in_place=not keeps)
