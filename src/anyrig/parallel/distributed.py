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
from .group.fixed_parameters import FixedParameters, Freezing, explain_unfinished
from .group.states import broadcast_states
from .group.weighing import LateWeights, tensors_with_gradients
from .group.without_samples import first_samples
from .layout import Layout
from .losses.loss import Criterion
from .own_class import find_own_class, states_of
from .rank_module import RankModule, Run

_ALLOWED = ("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph")
_DECIDED = {
    "module": "it is the first argument of spread",
    "device_ids": "the module is on the rank's device",
    "output_device": "outputs stay on the rank's device",
    "dim": "it is an argument of spread",
    "process_group": "all ranks of the default group take part",
    "device_mesh": "all ranks of the default group take part",
    "broadcast_buffers": "buffers travel in the backward pass, from a rank that has samples",
    "forward_sync_buffers": "buffers travel in the backward pass, from a rank that has samples",
    "init_sync": "rank 0's parameters and buffers are broadcast",
}


class DistributedModule(RankModule):
    """Averages gradients with PyTorch's DDP, and gives every sample of all ranks equal weight.

    ::

        model = anyrig.spread(Net())              # in each process of `anyrig run` or torchrun
        criterion(model(x), y).backward()         # x: this rank's samples, of any number
        optimizer.step()                          # the same on all ranks

    Names in the state dict have no prefix, and the module's attributes are reachable through this
    object. Do not add or replace parameters afterwards. All parameters may be frozen for some
    steps; freezing only some of them needs `find_unused_parameters`.

    The module is on this rank's device; rank 0's parameters and buffers are broadcast to all ranks.
    `options` are arguments of DDP, as returned by `check_ddp_options`.
    """

    _options: dict[str, Any]

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        loss: Criterion | None,
        options: Mapping[str, Any],
    ) -> None:
        # torch.nn.Module.__setattr__ works only after super().__init__().
        self.__dict__["_options"] = dict(options)
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
            ddp = DistributedDataParallel(self.module, **options)
            ddp.broadcast_buffers = False  # this class does that during the backward pass
            run.buffers.note_versions()
            run.engine = ddp
            keep_until_exit(ddp.process_group)
        else:
            broadcast_states(states_of(self.module), 0)
        return run

    def _follows_graph(self) -> bool:
        """Return whether DDP reads the graph of a step, and does not rely on hooks alone."""
        return any(map(self._options.get, ("find_unused_parameters", "static_graph")))

    def _fix_parameters(self) -> FixedParameters:
        # DDP has hooks on these nodes. `parameter.data = …` of another dtype, as in model.half(),
        # and `Tensor.set_`, as in `parametrize`, replace the node by one without a hook.
        hooked = {
            parameter: get_gradient_edge(parameter).node
            for parameter in self.module.parameters()
            if parameter.requires_grad
        }
        finds_unused = self._options.get("find_unused_parameters", False)
        # With find_unused_parameters, DDP treats parameters without their hooks as unused. Without
        # it, DDP reports them, unless all hooks are lost: then it does not see the backward pass.
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
            if run.late_weights is not None:
                run.late_weights.end()
            # DDP would rebuild its buckets in the next forward, where a rank that calls the model
            # alone would wait for the others.
            try:
                ddp.reducer._rebuild_buckets()
                run.is_armed = False
            except RuntimeError as error:
                if explain_unfinished(error, ()) is None:
                    raise
                # Gradients were missing, which the next forward reports.

        # Queued twice, to run after DDP, which queues its own callback in the backward pass.
        queue_callback(lambda: queue_callback(end))

    def _weigh_late(self, run: Run, exchange: Exchange, meet: Callable[[], None]) -> bool:
        ddp, late = run.engine, run.late_weights
        if run.joining or ddp is None or self._device.type != "cpu" or self._follows_graph():
            return False
        if late is None:
            exchange.finish()
            if len(set(exchange.samples_of_ranks)) > 1 and exchange.reduces and not run.has_hook:

                def begin_late_weights() -> None:
                    if run.late_weights is None:
                        run.late_weights = LateWeights(ddp)

                # Only once this pass, which DDP reduces without a hook, has ended.
                queue_callback(lambda: queue_callback(begin_late_weights))
            return False
        weight = late.weight_in_this_pass()
        if weight is not None:  # the buckets have the weight of an earlier forward
            exchange.finish()
            exchange.outer_weight = exchange.weight / weight
            return False
        # A rank without samples must add zeros, even if a mean over none made its gradients NaN.
        if not (exchange.samples and exchange.own_reduces and run.is_armed):
            return False
        for each in run.fixed.parameters:
            # A hook would see the gradient before it is weighted; the attributes are private.
            if each.grad is not None or each._backward_hooks or each._post_accumulate_grad_hooks:
                return False
        late.begin(exchange, meet)
        return True

    def _arm_again(self, ddp: DistributedDataParallel) -> None:
        """Make DDP reduce a backward pass for which no forward has prepared it.

        A forward prepares DDP for one backward pass. After two forwards DDP would not reduce the
        gradients of the second backward pass. The preparation cannot be undone: if one rank has
        called the model alone, all ranks reduce even in a step of `no_sync`, which does not change
        the sums.
        """
        if self._follows_graph():
            raise SpreadError(
                "this backward pass does not belong to the last forward, or another rank has "
                "called the model alone; with find_unused_parameters= or static_graph= DDP cannot "
                "reduce its gradients. Call backward() once after each forward, on the sum of the "
                "losses, and call the model alone under torch.no_grad(); or leave out these options"
            )
        ddp.reducer.prepare_for_backward([])

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Reduce gradients by a hook instead of an all-reduce.

        ::

            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)

        Hooks are those of `DistributedDataParallel.register_comm_hook`: ``hook(state, bucket)``
        gets a `torch.distributed.GradBucket` and returns a future of the means over the ranks. The
        gradients in a bucket are weighted by this rank's samples, so their mean is the gradient of
        the global batch. A copy of the model has no hook.

        Raises:
            SpreadError: no parameter of the module requires a gradient.
            RuntimeError: a hook is registered already.
        """
        run = self._run or self._start()
        ddp = run.engine
        if ddp is None:
            raise SpreadError(
                f"no parameter of this {type(self.module).__name__} requires a gradient, so a hook "
                "has nothing to reduce"
            )
        if run.has_hook:
            raise RuntimeError("register_comm_hook can only be called once for a model")
        if run.late_weights is None:
            ddp.register_comm_hook(state, hook)
        else:
            run.late_weights.hook = hook, state
        run.has_hook = True

    @contextmanager
    def join(self) -> Iterator[None]:
        """Let the ranks have different numbers of batches in the loop of this block.

        ::

            with model.join():
                for x, y in loader:            # may end earlier on one rank than on another
                    criterion(model(x), y).backward()
                    optimizer.step(); optimizer.zero_grad()

        A rank whose loop has ended takes part in the others' collectives, without samples, until
        all loops have ended. Then all ranks get the parameters and buffers of a rank that stepped
        last; optimizers keep their state. `anyrig.distribute` makes `join` unnecessary.

        Raises:
            SpreadError: this rank had no batch at all, but others had.
        """
        refuse_with_accumulate(self._layout.accumulate, "join()", "use anyrig.distribute(loader)")
        run = self._run or self._start()
        run.joining = True
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
        inputs, kwargs = first_samples(sample, 0, self._layout.dim)
        before, self._reduces = self._reduces, exchange.reduces
        try:
            loss = self._loss if exchange.with_loss else None
            with self._layout.computing():
                return self._learn(inputs, dict(kwargs), loss, exchange)
        finally:
            self._reduces = before


def check_ddp_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as keyword arguments for DDP; raise SpreadError for any other option."""
    for name in options:
        if name in _ALLOWED:
            continue
        why = f"spread decides it: {_DECIDED[name]}" if name in _DECIDED else "it is not supported"
        raise SpreadError(f"ddp= does not take {name!r}: {why}. It takes {', '.join(_ALLOWED)}")
    return dict(options)
