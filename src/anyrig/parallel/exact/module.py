"""A module whose training has the same bits on any number of ranks.

::

    model(x, target=y)                      on each rank, for its logical shards in turn
      ├─ module, loss, backward pass        random numbers follow from (seed, step, logical shard)
      ├─ add_in_order                       gradients, over all ranks              sums.py
      └─ the loss of the global batch       sums / counts, added in order
    loss.backward()                         hands the gradients to the parameters
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import BatchError, ShardSaveError, SpreadError
from ...processes.group.membership import current_context, open_carrier
from ...transfer.move import Mover
from ...transfer.tree import list_leaves, map_leaves
from ..batch.samples import count_listed, count_samples, find_sample_count, name_argument
from ..batch.scatter import divide, exactly
from ..compiling import leave_to_modules
from ..group.exchange import Exchange, Phase
from ..group.loaders.agreed_order import mix_seed
from ..group.without_samples import compute_without_samples, first_samples
from ..layout import Layout
from ..losses.even_means import rate_of_targets, require_even
from ..losses.loss import Criterion, LossPart, criterion_on, loss_part
from ..losses.mistakes import explain_call
from ..marks import tensors_with_gradients
from ..named_arguments import take_target
from ..replicas.transparent import TransparentModule
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


class ExactModule(TransparentModule):
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

    _layout: Layout
    _loss: Criterion
    exact_state: ExactState

    def __init__(
        self, module: torch.nn.Module, layout: Layout, loss: Criterion, state: ExactState
    ) -> None:
        super().__init__(module)
        self.__dict__.update(_layout=layout, _loss=loss, exact_state=state, _sample=None)
        self.__dict__.update(_number=0, _calls=0, _sums=None, _known=None)
        if layout.group is not None:
            context = current_context()
            open_carrier(context)
            context.counts["models"] += 1
            self.__dict__["_number"] = context.counts["models"]
        if layout.way == "shards":
            from .sharded_sums import ShardedSums

            # FSDP2 replaces the parameters while it computes, so keep the shards here.
            self.__dict__.update(_sums=ShardedSums(module), _known=[*module.parameters()])

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the loss of the global batch, or without ``target=`` the outputs.

        Raises:
            SpreadError: gradients of outputs would be needed, or a layer depends on which samples
                are computed together.
            BatchError: the ranks do not have the logical shards of a global batch.
        """
        if torch.compiler.is_compiling():
            leave_to_modules()
        require_one_thread(self._layout.lead)
        call = self._global_loss if "target" in kwargs else self._outputs
        try:
            return call(inputs, kwargs)
        except TypeError as error:
            explain_call(error, self.module, inputs, kwargs)
            raise
        finally:
            if self.__dict__["_sums"] is not None:
                self.__dict__["_sums"].reshard()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do nothing: gradients of several backward passes add up in any case."""
        yield

    def refresh(self) -> None:
        """Do nothing: each rank computes with the module itself."""

    def _parameters_to_learn(self) -> list[torch.nn.Parameter]:
        known = self.__dict__["_known"] or self.module.parameters()
        return [parameter for parameter in known if parameter.requires_grad]

    def _outputs(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.is_grad_enabled() and self._parameters_to_learn():
            raise SpreadError(
                "a model with the plan Exact computes gradients shard by shard, so it needs the "
                "loss: call model(x, target=y), which returns the loss of the global batch; or "
                "compute outputs under torch.no_grad()"
            )
        inputs, kwargs = Mover(self._layout.lead, non_blocking=True).map((inputs, kwargs))
        with self._layout.computing():
            if find_sample_count((inputs, kwargs), self._layout.dim) == 0:
                return self._stand_in((inputs, kwargs))
            return self.module(*inputs, **kwargs)

    def _global_loss(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        layout, state = self._layout, self.exact_state
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
        sharded = self.__dict__["_sums"]
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
        handed: Tensor = _HandOut.apply(whole, divisor, gradients, *parameters)  # type: ignore[no-untyped-call]
        return handed

    def _bring(self, inputs: tuple[Any, ...], kwargs: dict[str, Any], learns: bool) -> Any:
        given = Mover(self._layout.lead, non_blocking=True).map((inputs, kwargs))
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
        layout, shards = self._layout, self.exact_state.logical_shards
        samples = count_samples(given, layout.dim, name_argument)
        if samples is None or count_listed(*given) is not None:
            raise BatchError(
                "Exact divides tensors along the dimension of samples, but this call has "
                "its samples in lists, or has none; pass tensors, padded if necessary"
            )
        context = None if layout.group is None else current_context()
        of_ranks = [samples]
        if context is not None:
            self.__dict__["_calls"] += 1
            exchange = Exchange(
                context, self._number, samples, own_loss=True, forward=self.__dict__["_calls"]
            )
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
        target = take_target(self.module, inputs, kwargs)
        with self._layout.computing():
            if not samples:
                leaves = tensors_with_gradients(self._stand_in((inputs, kwargs)))
                terms = [leaf.reshape(-1)[:0].sum() for leaf in leaves]
                return torch.stack(terms).sum() if terms else None, None
            if sharded and self.__dict__["_sample"] is None:
                self.__dict__["_sample"] = first_samples((inputs, kwargs), 1, self._layout.dim)
            output = self.module(*inputs, **kwargs)
            criterion = criterion_on(self._loss, self._layout.lead)
            loss = loss_part(criterion, output, target, samples)
        if not loss.reduced:
            raise BatchError(
                "the loss returns a loss for each sample, but Exact needs one number: "
                "return a mean or (sum, count)"
            )
        return loss.value, replace(loss, value=loss.value.detach(), shape=None)

    def _stand_in(self, given: Any) -> Any:
        """Compute without samples, so that this rank takes part in FSDP2's collectives."""
        return compute_without_samples(
            self.module,
            self.module,
            given,
            self.__dict__["_sample"],
            self._layout.dim,
        )

    def _add_losses(
        self, found: Sequence[LossPart | None], sizes: Sequence[int], ranks: int
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of the global batch, and what its sum was divided by."""
        device = self._layout.lead
        wide = torch.float32 if device.type in ("mps", "xpu") else torch.float64
        numbers = torch.zeros(len(sizes) // ranks, 5, dtype=wide, device=device)
        for row, part in zip(numbers, found, strict=False):
            if part is not None:
                row[0] = part.value
                row[1] = 0 if part.count is None else part.count
                row[2] = part.count is not None
                row[3] = _DTYPES.index(part.dtype)
                rate = rate_of_targets(part)
                row[4] = 0 if rate is None else rate
        of_ranks = join_slices(numbers.view(-1), ranks).view(ranks, -1, 5)
        present = sum(size > 0 for size in sizes)
        in_order = of_ranks.transpose(0, 1).reshape(-1, 5)[:present]
        first = found[0] if found else None
        dtype = _DTYPES[int(in_order[0, 3])] if first is None else first.dtype
        if first is None or first.targets:
            require_even(in_order[:, 4].tolist())
        total, count, divides, *_ = in_order.sum(0).unbind()
        divisor = torch.where(divides > 0, count, 1)
        return (total / divisor).to(dtype), divisor

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise ShardSaveError if this rank has only shards."""
        if self._layout.way == "shards":
            from ..sharded import explain_saving

            raise ShardSaveError(explain_saving(dist.get_world_size()))
        return super().__reduce_ex__(protocol)


class _HandOut(torch.autograd.Function):
    """The loss; its backward pass gives parameters the gradients that were computed with it."""

    @staticmethod
    def forward(
        ctx: Any, whole: Tensor, divisor: Tensor, gradients: list[Tensor | None], *_: Tensor
    ) -> Tensor:
        ctx.divisor, ctx.gradients = divisor, gradients
        return whole.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise SpreadError(
                "the gradients of this loss were handed out before; call the model again"
            )
        scale = gradient.to(ctx.divisor.dtype) / ctx.divisor
        for each in gradients:
            if each is not None:
                to_local = getattr(each, "to_local", None)  # of a DTensor
                local = each if to_local is None else to_local()
                local.mul_(scale.to(local.dtype))
        return None, None, None, *gradients
