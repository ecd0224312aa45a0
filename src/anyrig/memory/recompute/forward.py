"""Let blocks of a model recompute their activations in the backward pass."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from ...private_names import refuse_missing
from .blocks import named_blocks
from .buffers import KeptBuffers, WrittenBuffers


def recompute_blocks(model: nn.Module, names: Iterable[str]) -> None:
    """Let the named blocks recompute their activations in the backward pass, and no others.

    ::

        recompute_blocks(model, ["layers.0", "layers.1"])
        recompute_blocks(model, [])  # undoes it

    `checkpoint_blocks` chooses the names. Call this function with the same names on every rank,
    before the model is wrapped by `anyrig.spread`, DDP or `fully_shard`.

    Gradients, random numbers, autocast and the buffers that a block changes, such as the running
    statistics of batch norm, are the same as without recomputation. Names, classes and state dicts
    of the modules stay the same. Copies and pickled models recompute, too.

    Raises:
        MemoryTrackingError: the model has no module of that name, or one of them contains another.
    """
    refuse_missing("memory")
    chosen = named_blocks(model, names)
    wanted = {id(block) for block in chosen.values()}
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, RecomputedForward) and id(module) not in wanted:
            forward.remove()
    for block in chosen.values():
        if not isinstance(vars(block).get("forward"), RecomputedForward):
            RecomputedForward(block).install()


def is_recomputed(block: nn.Module) -> bool:
    """Return whether a block already recomputes its activations in the backward pass.

    Besides `recompute_blocks`, this recognizes PyTorch's ``checkpoint_wrapper`` and the attribute
    ``gradient_checkpointing``, which Transformers sets in the blocks of a model. A call of
    ``checkpoint`` in the model's own forward cannot be seen from its modules.
    """
    return (
        isinstance(vars(block).get("forward"), RecomputedForward)
        or getattr(block, "gradient_checkpointing", False) is True
        or type(block).__name__ == "CheckpointWrapper"
    )


class RecomputedForward:
    """A module's replacement of `forward`: keeps the inputs, and recomputes the rest for backward.

    The replacement is an attribute of the module, so that the module's class, its names and other
    hooks stay as they are. An additional hook records which copy of the module is called: the
    replicas of `nn.DataParallel` and `anyrig.spread` share the module's attributes.
    """

    def __init__(self, module: nn.Module) -> None:
        # Weak: a cycle would keep the model's memory until the garbage collector runs.
        self._module = weakref.ref(module)
        self._own: Callable[..., Any] | None = None  # an earlier `forward` attribute
        self._handle: RemovableHandle | None = None
        self._buffers = WrittenBuffers()
        self._called: dict[int, nn.Module] = {}  # by thread: the copy that is called now

    def install(self) -> None:
        """Begin to recompute."""
        module = self._owner()
        self._own = vars(module).get("forward")
        module.forward = self
        self._handle = module.register_forward_pre_hook(self._note_copy)

    def remove(self) -> None:
        """Undo `install`."""
        module = self._owner()
        if self._own is None:
            del module.forward
        else:
            module.forward = self._own
        if self._handle is not None:
            self._handle.remove()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's forward pass, and keep nothing but its arguments for backward."""
        module = self._called.pop(threading.get_ident(), None) if self._called else None
        if module is None:
            module = self._owner()
        if not torch.is_grad_enabled():
            return self._compute(module, *args, **kwargs)
        count, names = len(args), tuple(kwargs)

        # Pass all arguments by position: `checkpoint` restores the random numbers of the devices of
        # positional tensors, and ignores keyword arguments.
        def compute(*values: Any) -> Any:
            by_name = dict(zip(names, values[count:], strict=True))
            return self._compute(module, *values[:count], **by_name)

        values = (*args, *kwargs.values())
        if self._has_context(module):
            return self._checkpoint_in_context(module, compute, values)
        return checkpoint(compute, *values, use_reentrant=False)

    def _has_context(self, module: nn.Module) -> bool:
        """Return whether recomputations need more than `checkpoint` does."""
        return next(module.buffers(), None) is not None

    # torch.compile cannot compile a checkpoint with a context. Private, because the public
    # torch.compiler.disable imports the compiler at once. The test of compiled models with batch
    # norm fails if the name changes.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _checkpoint_in_context(
        self, module: nn.Module, compute: Callable[..., Any], values: tuple[Any, ...]
    ) -> Any:
        kept = self._buffers.keep(module)
        around = self._around_recomputation(kept)
        result = checkpoint(
            compute, *values, use_reentrant=False, context_fn=lambda: (nullcontext(), around)
        )
        self._buffers.learn(kept)
        return result

    def _around_recomputation(self, kept: KeptBuffers) -> AbstractContextManager[object]:
        """Return the context of recomputations, which may be entered several times."""
        return kept

    def _compute(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self._own is not None:
            return self._own(*args, **kwargs)
        return type(module).forward(module, *args, **kwargs)

    def _owner(self) -> nn.Module:
        module = self._module()
        if module is None:
            raise ReferenceError("the module that owned this forward no longer exists")
        return module

    def _note_copy(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module is not self._module():
            self._called[threading.get_ident()] = module
        elif self._called:  # from a call whose other hooks raised an exception
            self._called.pop(threading.get_ident(), None)

    def __reduce__(self) -> Any:
        # The module is copied or pickled together with its forward.
        state = {"_own": self._own, "_handle": self._handle, "_buffers": self._buffers}
        return RecomputedForward, (self._owner(),), state
