"""The backward passes that reach the parameters of a module over ranks, and their weights.

::

    loss ─▶ … ─▶ an output            ─▶ … ─▶ a parameter's gradient    ─▶ .grad
                 says which forward           times n * R / N
                 the pass belongs to

A hook on each parameter sees each gradient before it is added to `.grad`, whichever path led there:
an output, an attribute, a hook's feature, a gradient of a gradient, or a penalty on the parameter
itself. With n samples on this rank, N on all R ranks, and weights n * R / N, the mean over the
ranks is the gradient of the global batch. In the graph, outside and inside the module, gradients
are those of this rank's own loss.

A pass that reaches the outputs of several forwards has the weight of the first. The outputs of the
others get the ratio of the weights. A pass that reaches no output belongs to the last forward.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import BatchError, SpreadError
from ...processes.group.membership import Context
from ..backward_callback import queue_callback
from ..gradient_hooks import hook_first, hooks_of, use_in_this_pass, weighted
from ..marks import mark_outputs, tensors_with_gradients
from .exchange import Exchange, Phase


@dataclass(eq=False)
class Forward:
    """One call of a module with gradients."""

    exchange: Exchange
    meets_again: bool = True  # whether its backward pass announces itself; not within `join`
    may_wait: bool = True  # whether its weight may be known later than its first gradient
    # Called once the ranks have met in the backward pass.
    met: Callable[[], None] = lambda: None

    @property
    def has_samples(self) -> bool:
        """Whether this rank computed samples, and not only stand-ins."""
        return bool(self.exchange.samples)


@dataclass(eq=False)
class BackwardPass:
    """A backward pass that has reached an output or a parameter."""

    forwards: list[Forward] = field(default_factory=list)
    begun: bool = False  # whether it has reached a parameter
    by_grad: bool = False  # whether torch.autograd.grad returns the parameters' gradients
    reduces: bool = False
    by_buckets: bool = False  # whether buckets have the weight, and not the single gradients
    weight: float = 0.0
    awaited: Callable[[], None] | None = None  # waits for the other ranks' announcements
    # The indices of the parameters that have got a gradient, and of those that got None.
    arrived: set[int] = field(default_factory=set)
    undefined: set[int] = field(default_factory=set)
    to_free: list[int] = field(default_factory=list)  # get no gradient on any rank

    def wait(self) -> float:
        """Wait until all ranks have announced this pass; return the weight of its gradients."""
        awaited, self.awaited = self.awaited, None
        if awaited is not None:
            awaited()
        return self.weight


class GradientHook:
    """The hook on one parameter."""

    def __init__(self, passes: Passes, index: int) -> None:
        # The parameter has this hook for ever; the model may end before.
        self.passes, self._index = weakref.ref(passes), index

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        """Return the weighted gradient; None leaves it as it is."""
        passes = self.passes()
        return None if passes is None else passes.reach_parameter(self._index, gradient)


class Passes(ABC):
    """The backward passes of one model, one after another."""

    # Whether a pass begins at the outputs, because it has collectives before the first parameter.
    _begins_at_outputs = False

    def __init__(self, context: Context, model: int, name: str) -> None:
        self.context, self._model = context, model  # the model's number
        self._name = name  # of the module's class
        self.newest: Forward | None = None
        self._last: Forward | None = None  # the last forward that no backward pass has reached
        self._now: BackwardPass | None = None
        # Why the samples of a method's call since the last forward could not be counted.
        self.uncounted: BatchError | None = None
        self.parameters: list[Tensor] = []

    def watch(self, parameters: Iterable[Tensor]) -> None:
        """Put hooks on parameters that have none of this model; older models lose theirs."""
        for parameter in parameters:
            hooks = hooks_of(parameter)
            if any(
                isinstance(hook, GradientHook) and hook.passes() is self for hook in hooks.values()
            ):
                continue
            for key in [key for key, hook in hooks.items() if isinstance(hook, GradientHook)]:
                del hooks[key]
            # The caller's hooks must see what they see on one device.
            hook_first(parameter, GradientHook(self, len(self.parameters)))
            self.parameters.append(parameter)

    def note(self, forward: Forward, output: Any) -> None:
        """Note a forward, and mark what it returned."""
        self.newest = self._last = forward
        self.uncounted = None
        # Without the function, which keeps the model alive.
        self.context.last_forward = replace(forward, met=_nothing)
        mark_outputs(tensors_with_gradients(output), partial(self._reach_output, forward))

    def forget(self) -> None:
        """Forget a backward pass that did not end."""
        if torch._C._current_graph_task_id() == -1:
            self._now = None

    def _may_wait(self, now: BackwardPass) -> bool:
        """Return whether the weight of a pass is needed later than its first gradient."""
        return False

    @abstractmethod
    def _prepare(self, now: BackwardPass) -> None:
        """Prepare the engine for a pass that has reached the first parameter."""

    def _weigh(self, index: int, gradient: Tensor, now: BackwardPass) -> Tensor | None:
        """Return what replaces the gradient of parameter `index`; None leaves it as it is."""
        weight = now.wait()
        return None if weight == 1.0 else weighted(gradient, weight)

    @abstractmethod
    def _complete(self, now: BackwardPass) -> None:
        """Complete a pass that has computed all gradients."""

    @abstractmethod
    def _follow(self, now: BackwardPass) -> None:
        """Follow a pass once the engine has reduced its gradients."""

    def _open(self) -> BackwardPass:
        if self._now is None:
            now = self._now = BackwardPass()
            queue_callback(lambda: self._end(now))
        return self._now

    def _reach_output(self, forward: Forward) -> float:
        """Return the scale of the gradients that enter a module by the outputs of `forward`."""
        now = self._open()
        scale = 1.0 if forward.has_samples else 0.0
        if not self._begins_at_outputs and (now.by_grad or not use_in_this_pass(self.parameters)):
            return scale
        if forward not in now.forwards:
            now.forwards.append(forward)
            if now.begun:
                self._meet(now, forward)
            elif self._begins_at_outputs or len(now.forwards) > 1:
                self._begin(now)
        if now.begun and forward.has_samples:
            scale = forward.exchange.weight / now.wait()
        return scale

    def reach_parameter(self, index: int, gradient: Tensor | None) -> Tensor | None:
        """Return what replaces the gradient of parameter `index`; None leaves it as it is."""
        now = self._open()
        if not now.begun:
            now.by_grad = use_in_this_pass([self.parameters[index]]) == "returns"
            self._begin(now)
        if gradient is None:
            now.undefined.add(index)
            return None
        now.arrived.add(index)
        return self._weigh(index, gradient, now)

    def _begin(self, now: BackwardPass) -> None:
        now.begun = True
        if not now.forwards:
            if self.uncounted is not None:
                raise self.uncounted
            now.forwards.append(self._last or self._like_the_last())
        self._last = None
        for forward in [*now.forwards]:
            self._meet(now, forward)
        self._prepare(now)

    def _like_the_last(self) -> Forward:
        """Return a forward with as many samples as the last forward of any model had.

        The module was called itself, or a penalty has no forward of its own.
        """
        last: Forward | None = self.context.last_forward
        if last is None:
            raise SpreadError(
                f"a backward pass has reached the parameters of this {self._name}, which is spread "
                "over ranks, but no spread model was called before: the ranks cannot know how "
                "many samples each has. Call the model, or a method of it with the batch as an "
                "argument: model.training_step(batch)"
            )
        own = Exchange(
            self.context,
            self._model,
            last.exchange.samples,
            own_reduces=last.exchange.own_reduces,
        )
        return replace(last, exchange=own)

    def _meet(self, now: BackwardPass, forward: Forward) -> None:
        exchange = forward.exchange
        if forward.meets_again:
            exchange.start(Phase.BACKWARD)

        def met() -> None:
            exchange.finish()
            if not now.weight:
                now.weight = exchange.weight
            forward.met()

        if len(now.forwards) == 1 and self._may_wait(now):
            now.reduces, now.awaited = True, met
            return
        now.wait()
        met()
        now.reduces |= exchange.reduces

    def _end(self, now: BackwardPass) -> None:
        if not now.begun:
            self._now = None
            return
        try:
            now.wait()
            self._complete(now)
        except BaseException:
            self._now = None
            raise

        def follow() -> None:
            self._now = None
            self._follow(now)

        # Runs after the engine's callback, which may be queued only now.
        queue_callback(follow)


def _nothing() -> None:
    """Do nothing."""
