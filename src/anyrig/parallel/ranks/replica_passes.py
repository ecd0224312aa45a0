"""The backward passes of replicas: DDP reduces their gradients in buckets.

::

    first gradient     the ranks announce their samples, DDP is armed
    single gradients   times the weight ─▶ .grad ─▶ bucket ─▶ mean over the ranks
    or their buckets                       .grad ─▶ bucket ─▶ times the weight ─▶ mean
    the end            parameters without a gradient add zeros, and DDP writes .grad

Single gradients are weighted until ranks first have different numbers of samples. From then on a
communication hook weights the buckets, which is faster, and waits for the other ranks only where
DDP makes them wait anyway. A bucket has what was in `.grad` before, too. If that was reduced, it is
the same on all ranks, and since the weights' mean is 1, weighting does not change it. After a pass
in `no_sync` it is not, so single gradients are weighted again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ...errors import SpreadError
from ...processes.group.membership import Context
from ..backward_callback import queue_callback
from ..gradient_hooks import weighted
from .exchange import Exchange, Phase
from .passes import BackwardPass, Passes

# torch/csrc/distributed/c10d/reducer.cpp: ensure_prior_reduction_finished.
_UNFINISHED = "Expected to have finished reduction in the prior iteration"
_MOST_NAMED = 5
_OPTION = "plan=Replicas(ddp=dict(find_unused_parameters=True))"


class ReplicaPasses(Passes):
    """Reduces the gradients of one module by DDP.

    Args:
        context: the state of the process group.
        model: the number of the spread model.
        module: the module, whose parameters that learn are those of `ddp`.
        ddp: reduces the gradients.
        finds_unused: whether ranks may differ in which parameters they use.
    """

    def __init__(
        self,
        context: Context,
        model: int,
        module: nn.Module,
        ddp: DistributedDataParallel,
        finds_unused: bool,
    ) -> None:
        super().__init__(context, model, type(module).__name__)
        self.ddp, self._finds_unused = ddp, finds_unused
        learning = {
            parameter: name
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and name not in ddp.parameters_to_ignore
        }
        self._names = [*learning.values()]
        self._sparse = {
            id(layer.weight)
            for layer in module.modules()
            if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse
        }
        # The caller's communication hook, which gets weighted buckets, and its state.
        self._hook: tuple[Callable[..., Any], object] | None = None
        self._weights_buckets = False
        self._has_unreduced = False  # whether `.grad` has gradients of this rank alone
        self._filling = False
        self.watch(learning)

    @property
    def has_hook(self) -> bool:
        """Whether the caller has registered a communication hook."""
        return self._hook is not None

    def use_hook(self, hook: Callable[..., Any], state: object) -> None:
        """Let the caller's hook reduce the weighted buckets."""
        self._hook = hook, state
        self.weight_buckets()

    def weight_buckets(self) -> None:
        """Weight buckets from the next pass on. Every rank must call this at the same point."""
        if not self._weights_buckets:
            self._weights_buckets = True
            # A lambda, because DDP rejects annotations that are strings.
            self.ddp.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))

    def reach_parameter(self, index: int, gradient: Tensor | None) -> Tensor | None:
        """Return what replaces the gradient of parameter `index`; None leaves it as it is."""
        return None if self._filling else super().reach_parameter(index, gradient)

    def _may_wait(self, now: BackwardPass) -> bool:
        (forward,) = now.forwards
        may_weight_buckets = self._weights_buckets and not self._has_unreduced
        return may_weight_buckets and forward.may_wait and not now.by_grad

    def _prepare(self, now: BackwardPass) -> None:
        if now.by_grad or not now.reduces:
            return
        now.by_buckets = self._weights_buckets and not self._has_unreduced
        try:
            self.ddp.reducer._rebuild_buckets()  # in the order of the gradients of the pass before
            self.ddp.reducer.prepare_for_backward([])
        except RuntimeError as error:
            if _UNFINISHED not in str(error):
                raise
            raise SpreadError(
                f"a backward pass of this {self._name} failed before the ranks had averaged all "
                "gradients, so they may have different ones. After such an error, spread a new "
                "copy of the module on every rank, and load a checkpoint"
            ) from error

    def _reduce(self, bucket: Any) -> Any:
        now = self._now
        buffer = bucket.buffer()
        weight = 1.0 if now is None else now.wait() if now.by_buckets else 1.0
        if not weight:
            buffer.zero_()  # the mean over zero samples is NaN, and NaN times zero is NaN
        if self._hook is not None:
            hook, state = self._hook
            buffer.mul_(weight)
            return hook(state, bucket)
        group = self.ddp.process_group
        buffer.mul_(weight / group.size())
        # Waits before DDP reads the buffer. `Future.then` would need Python on gloo's thread.
        queue_callback(group.allreduce([buffer]).wait)
        ready: Future[Tensor] = Future()
        ready.set_result(buffer)
        return ready

    def _weigh(self, index: int, gradient: Tensor, now: BackwardPass) -> Tensor | None:
        if now.by_grad or self._has_other_hooks(index):
            return self._reduce_now(index, gradient, now)
        return None if now.by_buckets else super()._weigh(index, gradient, now)

    def _has_other_hooks(self, index: int) -> bool:
        parameter: Any = self.parameters[index]
        return len(parameter._backward_hooks) > 1 or bool(parameter._post_accumulate_grad_hooks)

    def _reduce_now(self, index: int, gradient: Tensor, now: BackwardPass) -> Tensor | None:
        """Return the mean of a gradient that a hook or torch.autograd.grad reads."""
        if now.by_grad and not now.reduces:
            return None  # within no_sync()
        if torch.is_grad_enabled():
            raise SpreadError(
                f"the gradient of {self._names[index]} is needed with a graph (create_graph=True), "
                "but the mean over the ranks has none. Compute the gradient of the gradient with "
                "respect to an input or an output instead; or call torch.autograd.grad() within "
                "model.no_sync(), which gives this rank's own gradient"
            )
        mean = weighted(gradient, now.wait() / self.ddp.process_group.size())
        dist.all_reduce(mean, group=self.ddp.process_group)
        return mean

    def _complete(self, now: BackwardPass) -> None:
        if now.by_grad:
            return
        if not now.reduces:
            self._has_unreduced = True
            return
        indices = range(len(self.parameters))
        missing = [each for each in indices if each not in now.arrived | now.undefined]
        unused = [each for each in indices if each not in now.arrived]
        none = [each for each in unused if self.parameters[each].grad is None]
        # A hook has stepped these, and has freed their gradients.
        freed = [
            each
            for each in now.arrived
            if self.parameters[each].grad is None and self._has_other_hooks(each)
        ]
        if missing:
            self._fill(missing)
        now.to_free = freed + self._unused_everywhere(none, unused, now)

    def _fill(self, missing: Iterable[int]) -> None:
        """Give DDP zeros for parameters that this pass did not reach."""
        parameters = [self.parameters[each] for each in missing]
        frozen = [each for each in parameters if not each.requires_grad]
        self._filling = True
        try:
            for each in frozen:
                each.requires_grad_(True)
            torch.autograd.backward(parameters, [self._zeros(each) for each in parameters])
        finally:
            self._filling = False
            for each in frozen:
                each.requires_grad_(False)

    def _zeros(self, parameter: Tensor) -> Tensor:
        if id(parameter) not in self._sparse:
            return parameter.new_zeros(()).expand_as(parameter)
        indices = torch.empty(1, 0, dtype=torch.int64, device=parameter.device)
        values = parameter.new_empty(0, *parameter.shape[1:])
        return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)

    def _unused_everywhere(
        self, none: list[int], unused: Collection[int], now: BackwardPass
    ) -> list[int]:
        """Return the parameters of `none` that no rank has used: their `.grad` stays None."""
        learning = [each for each in none if self.parameters[each].requires_grad]
        if not learning and not self._finds_unused:
            return none
        own = now.forwards[0].exchange
        exchange = Exchange(self.context, self._model, own.samples, forward=own.forward)
        code = zlib.crc32(repr(learning).encode())
        exchange.start(Phase.UNUSED, extra=(code, len(learning), 0))
        exchange.finish()
        if not self._finds_unused:
            if len({*map(tuple, exchange.extra_of_ranks)}) == 1:
                return none
            named = ", ".join(self._names[each] for each in learning[:_MOST_NAMED])
            raise SpreadError(
                f"the ranks differ in which parameters have no gradient (here: {named}), so they "
                f"cannot know which to leave alone. Call anyrig.spread(…, {_OPTION})"
            )
        used = torch.ones(len(self.parameters), dtype=torch.uint8, device="cpu")
        used[[*unused]] = 0
        self.context.gloo.allreduce([used], dist.ReduceOp.MAX).wait()
        return [each for each in none if not used[each]]

    def _follow(self, now: BackwardPass) -> None:
        if now.by_grad or not now.reduces:
            return
        self._has_unreduced = False
        for each in now.to_free:
            self.parameters[each].grad = None
        samples = {count for each in now.forwards for count in each.exchange.samples_of_ranks}
        if len(samples) > 1:
            self.weight_buckets()
