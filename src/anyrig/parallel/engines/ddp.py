"""Replicas over ranks: PyTorch's DDP averages their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from ...errors import SpreadError
from ...processes.torch_faults import keep_until_exit
from ..accumulation import refuse_with_accumulate
from ..layout import Layout
from ..losses.loss import Criterion
from ..marks import tensors_with_gradients
from ..own_class import find_own_class, states_of
from ..ranks.exchange import Exchange, Phase
from ..ranks.fixed_parameters import FixedParameters
from ..ranks.optimizers import follow_optimizers
from ..ranks.replica_passes import ReplicaPasses
from ..ranks.run import Run
from ..ranks.states import broadcast_states
from ..ranks.without_samples import first_samples
from .rank_engine import RankEngine


class DdpEngine(RankEngine):
    """Averages gradients with PyTorch's DDP, and gives every sample of all ranks equal weight.

    Parameters must not be added or replaced afterwards; they may be frozen for some steps. If the
    ranks differ in which parameters they use, the option `find_unused_parameters` is needed.

    The module is on this rank's device; rank 0's parameters and buffers are broadcast to all ranks.
    `options` are arguments of DDP, as in `Replicas.ddp`.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        loss: Criterion | None,
        options: Mapping[str, Any],
    ) -> None:
        self._options = dict(options)
        super().__init__(module, layout, loss)

    def _start(self) -> Run:
        run = super()._start()
        if any(parameter.requires_grad for parameter in self.module.parameters()):
            # Views save a device one copy of all gradients. On the CPU they made the backward pass
            # of a convolutional network 6 % slower, and did not change that of a transformer.
            options = {"gradient_as_bucket_view": self._device.type != "cpu", **self._options}
            if any(True for _ in find_own_class(self.module)):
                # DDP would send the elements of such tensors, without what they carry.
                broadcast_states(states_of(self.module), 0)
                options["init_sync"] = False
            finds_unused = bool(options.pop("find_unused_parameters", False))
            ddp = DistributedDataParallel(self.module, **options)
            run.buffers.note_versions()
            run.passes = ReplicaPasses(run.context, run.number, self.module, ddp, finds_unused)
            keep_until_exit(ddp.process_group)
            follow_optimizers(run.context)
        else:
            broadcast_states(states_of(self.module), 0)
        return run

    @property
    def has_begun(self) -> bool:
        """Whether rank 0's parameters and buffers were sent; False in a copy before a call."""
        return self._run is not None

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """PyTorch's module; None if no parameter has gradients."""
        passes = None if self._run is None else self._run.passes
        return passes.ddp if isinstance(passes, ReplicaPasses) else None

    def _fix_parameters(self) -> FixedParameters:
        # DDP has hooks on these nodes. `parameter.data = …` of another dtype, as in model.half(),
        # and `Tensor.set_`, as in `parametrize`, replace the node by one without a hook.
        hooked = {
            parameter: get_gradient_edge(parameter).node
            for parameter in self.module.parameters()
            if parameter.requires_grad
        }
        # If all hooks are lost, DDP does not see the backward pass; otherwise it reports the lost
        # ones.
        watched = [*hooked][:1]

        def identify(parameter: torch.nn.Parameter) -> Any:
            if parameter not in hooked or not parameter.requires_grad:
                return parameter
            node = get_gradient_edge(parameter).node
            return parameter if node is hooked[parameter] else node

        def marks() -> list[int]:
            return [id(get_gradient_edge(each).node) for each in watched if each.requires_grad]

        return FixedParameters(self.module, lambda: identify, may_unfreeze=False, marks=marks)

    def _compute(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Reduce gradients by a hook; see `SpreadModule.register_comm_hook`."""
        run = self._run or self._start()
        passes = run.passes
        if not isinstance(passes, ReplicaPasses):
            raise SpreadError(
                f"no parameter of this {type(self.module).__name__} requires a gradient, so a hook "
                "has nothing to reduce"
            )
        if passes.has_hook:
            raise RuntimeError("register_comm_hook can only be called once for a model")
        passes.use_hook(hook, state)

    @contextmanager
    def join(self) -> Iterator[None]:
        """Let the ranks have different numbers of batches; see `SpreadModule.join`."""
        refuse_with_accumulate(self.layout.accumulate, "join()", "use anyrig.distribute(loader)")
        run = self._run or self._start()
        run.joining = True
        if isinstance(run.passes, ReplicaPasses):
            # A rank whose loop has ended may have the gradients of its last step in `.grad`.
            run.passes.weight_buckets()
        try:
            yield
            self._compute_until_all_end(run)
        finally:
            run.joining, run.last = False, None

    def _compute_until_all_end(self, run: Run) -> None:
        """Compute without samples while another rank has some."""
        last, left_early = run.last, False
        while True:
            exchange = Exchange(run.context, run.number, None)
            exchange.start(Phase.FORWARD)
            if not exchange.active_ranks:
                break
            run.forwards += 1
            last, left_early = exchange, True
            output = self._compute_without_samples(run, exchange)
            if exchange.reduces:
                outputs = tensors_with_gradients(output)
                torch.autograd.backward([tensor.sum() for tensor in outputs])
        if left_early:
            self.module.zero_grad()
        if last is not None and len(last.active_ranks) < run.context.group.world_size:
            states = [*self.module.parameters(), *self.module.buffers()]
            broadcast_states(states, last.active_ranks[0])

    def _compute_without_samples(self, run: Run, exchange: Exchange) -> Any:
        sample = run.sample_of.get(exchange.with_loss)
        if sample is None:
            raise SpreadError(
                f"rank {dist.get_rank()} had no batch within join(), but rank "
                f"{exchange.active_ranks[0]} had some: without a sample, this rank cannot take "
                "part. Give every rank a batch, or use anyrig.distribute(loader)"
            )
        inputs, kwargs = first_samples(sample, 0, self.layout.dim)
        before, self._reduces = self._reduces, exchange.reduces
        try:
            loss = self.loss if exchange.with_loss else None
            with self.layout.computing():
                return self._learn(inputs, dict(kwargs), loss, 0, exchange)
        finally:
            self._reduces = before
