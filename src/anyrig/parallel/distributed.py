"""A module with a replica on every rank: what `spread` returns in a process group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from ..errors import SpreadError
from ..processes.torch_faults import keep_until_exit
from .accumulation import refuse_with_accumulate
from .backward_callback import queue_callback
from .group.exchange import Exchange, Phase
from .group.fixed_parameters import FixedParameters, Freezing
from .group.states import broadcast_states
from .group.unused import explain_unfinished
from .group.weighing import tensors_with_gradients
from .group.without_samples import first_samples
from .layout import Layout
from .losses.loss import Criterion
from .rank_module import RankModule, Run


class DistributedModule(RankModule):
    """Averages gradients by PyTorch's DDP, weighted so that every row of all ranks counts the same.

    ::

        model = anyrig.spread(Net())              # in each process of `anyrig run` or torchrun
        criterion(model(x), y).backward()         # x: this rank's rows, as many as it likes
        optimizer.step()                          # the same on all ranks

    The module stays the truth: names in its state have no prefix, its attributes are reachable
    through this object. Its parameters are fixed when it is spread. All of them may be frozen for
    some steps; a few of them only with `find_unused_parameters`.

    Args:
        module: on this rank's device; rank 0's parameters and buffers go to all.
        layout: how and why it was spread.
        loss: see `anyrig.spread`.
        options: arguments of DDP, as `check_ddp_options` returns them.
    """

    _options: dict[str, Any]

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        loss: Criterion | None,
        options: Mapping[str, Any],
    ) -> None:
        # Beside torch.nn.Module's own attributes, which the wrapper has not got yet.
        self.__dict__["_options"] = dict(options)
        super().__init__(module, layout, loss)

    def _start(self) -> Run:
        run = super()._start()
        if any(parameter.requires_grad for parameter in self.module.parameters()):
            # Spares a device the memory of all gradients once. On the CPU the backward pass of a
            # convolutional network took 6 % longer with it, and a transformer's as long.
            options = {"gradient_as_bucket_view": self._device.type != "cpu", **self._options}
            ddp = DistributedDataParallel(self.module, **options)
            ddp.broadcast_buffers = False  # from now on: this class does so, beside the backward
            run.buffers.note_versions()
            run.engine = ddp
            keep_until_exit(ddp.process_group)
        else:
            broadcast_states([*self.module.parameters(), *self.module.buffers()], 0)
        return run

    def _fix_parameters(self) -> FixedParameters:
        # DDP has hooks on these nodes. `parameter.data = …` of another dtype, as in model.half(),
        # and `Tensor.set_`, as in `parametrize`, give a parameter another node without a hook.
        hooked = {
            parameter: get_gradient_edge(parameter).node
            for parameter in self.module.parameters()
            if parameter.requires_grad
        }
        finds_unused = self._options.get("find_unused_parameters", False)
        # DDP takes parameters that lost their hooks for unused ones. Otherwise it reports some that
        # have no gradient; only if all lost theirs does it see none of the backward pass.
        watched = list(hooked) if finds_unused else list(hooked)[:1]

        def identify(parameter: torch.nn.Parameter) -> Any:
            if parameter not in hooked or not parameter.requires_grad:
                return parameter
            node = get_gradient_edge(parameter).node
            return parameter if node is hooked[parameter] else node

        def marks() -> list[int]:
            return [id(get_gradient_edge(each).node) for each in watched if each.requires_grad]

        freezing = Freezing.SOME if finds_unused else Freezing.ALL
        if self._options.get("static_graph", False):
            freezing = Freezing.NONE
        return FixedParameters(self.module, lambda: identify, freezing, marks)

    def _compute(self, *inputs: Any, **kwargs: Any) -> Any:
        run = self._run or self._start()
        ddp = run.engine
        if ddp is None:
            return self.module(*inputs, **kwargs)
        if ddp.require_backward_grad_sync is not self._reduces:
            ddp.require_backward_grad_sync = self._reduces
        run.is_armed |= self._reduces
        try:
            return ddp.forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            named = self.module.named_parameters()
            short = explain_unfinished(error, (name for name, each in named if each.requires_grad))
            if short is None:
                raise
            raise short from error

    def _begin_backward(self, reduces: bool) -> None:
        run = self._run or self._start()
        ddp = run.engine
        if ddp is None or not reduces:
            return
        if not run.is_armed:
            self._arm_again(ddp)
            run.is_armed = True

        def end() -> None:
            if _rebuild_buckets(ddp):
                run.is_armed = False

        # Twice, for DDP queues the end of its reduction within the backward pass.
        queue_callback(lambda: queue_callback(end))

    def _arm_again(self, ddp: DistributedDataParallel) -> None:
        """Let DDP reduce a backward pass that it did not take note of in the forward.

        It takes note of one only: after two forwards it would leave the gradients of the second
        backward pass as each rank has them. And it cannot forget one: where a rank has called the
        model alone, the others reduce along in a step of `no_sync`, which changes no sum.
        """
        if self._options.get("find_unused_parameters") or self._options.get("static_graph"):
            raise SpreadError(
                "this backward pass is not that of the last forward, or another rank has called "
                "the model alone; with find_unused_parameters= or static_graph= DDP cannot reduce "
                "its gradients. Call backward() once after each forward, on the sum of the losses, "
                "and call the model alone under torch.no_grad(); or leave out these options"
            )
        ddp.reducer.prepare_for_backward([])

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Have a hook reduce gradients, in place of an all-reduce.

        ::

            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)

        The hook is PyTorch's: it gets buckets of gradients and returns a future of their means over
        the ranks. The gradients in a bucket are weighted by this rank's rows already, so that their
        mean is the gradient of the global batch. A copy of the model has no hook.

        Args:
            state: the hook's first argument.
            hook: called as ``hook(state, bucket)`` with a `torch.distributed.GradBucket`.

        Raises:
            SpreadError: no parameter of the module has a gradient.
            RuntimeError: there is a hook already.
        """
        ddp = (self._run or self._start()).engine
        if ddp is None:
            raise SpreadError(
                f"no parameter of this {type(self.module).__name__} requires a gradient, so there "
                "is nothing that a hook could reduce"
            )
        ddp.register_comm_hook(state, hook)

    @contextmanager
    def join(self) -> Iterator[None]:
        """Let ranks have different numbers of batches in the loop within.

        ::

            with model.join():
                for x, y in loader:            # ends on one rank before it does on another
                    criterion(model(x), y).backward()
                    optimizer.step(); optimizer.zero_grad()

        A rank whose loop has ended computes along with the others, without rows, until theirs have.
        Then all have the parameters and buffers of those that stepped last; an optimizer's state
        stays where it was. `anyrig.distribute` needs none of this.

        Raises:
            SpreadError: this rank had no batch at all, while others had.
        """
        refuse_with_accumulate(self._layout.accumulate, "join()", "take anyrig.distribute(loader)")
        run = self._run or self._start()
        run.joining = True
        try:
            yield
            self._accompany(run)
        finally:
            run.joining, run.last = False, None

    def _accompany(self, run: Run) -> None:
        """Compute without rows as long as a rank has some."""
        last, left_early = run.last, False
        while True:
            exchange = Exchange(run.context, run.number, None)
            exchange.start(Phase.FORWARD)
            if not exchange.active_ranks:
                break
            run.forwards += 1
            last, left_early = exchange, True
            self._compute_without_rows(run, exchange)
        if left_early:
            self.module.zero_grad()
        if last is not None and len(last.active_ranks) < run.context.group.world_size:
            states = [*self.module.parameters(), *self.module.buffers()]
            broadcast_states(states, last.active_ranks[0])

    def _compute_without_rows(self, run: Run, exchange: Exchange) -> None:
        row = run.row_of.get(exchange.with_loss)
        if row is None:
            raise SpreadError(
                f"rank {dist.get_rank()} had no batch within join(), and rank "
                f"{exchange.active_ranks[0]} had some: it does not know what to compute without "
                "rows. Give every rank a batch, or take anyrig.distribute(loader)"
            )
        inputs, kwargs = first_samples(row, 0, self._layout.dim)
        before, self._reduces = self._reduces, exchange.reduces
        try:
            loss = self._loss if exchange.with_loss else None
            with self._layout.computing():
                output = self._learn(inputs, dict(kwargs), loss, exchange)
        finally:
            self._reduces = before
        if exchange.reduces:
            outputs = tensors_with_gradients(output)
            torch.autograd.backward([tensor.sum() for tensor in outputs])


def _rebuild_buckets(ddp: DistributedDataParallel) -> bool:
    """Let all ranks agree on new buckets at the end of a backward pass, which happens once.

    DDP does so in the next forward, which would wait for the others where one rank calls the model
    alone. Returns False if gradients were missing, which the next forward reports.
    """
    try:
        ddp.reducer._rebuild_buckets()
    except RuntimeError as error:
        if explain_unfinished(error, ()) is None:
            raise
        return False
    return True
