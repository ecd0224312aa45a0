"""The module that `spread` returns, whatever the plan."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from ..errors import SpreadError
from .losses.mistakes import refuse_scattered_loss

if TYPE_CHECKING:
    from .engines.engine import Engine
    from .layout import Layout

_FSDP = {"torch.distributed.fsdp": ("FullyShardedDataParallel", "FSDPModule")}
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


def _of_the_inner(name: str) -> Any:
    """Return a method that calls the inner module's and returns the wrapper, not the module."""

    @functools.wraps(getattr(torch.nn.Module, name))
    def method(self: SpreadModule, *args: Any, **kwargs: Any) -> Any:
        returned = getattr(self.module, name)(*args, **kwargs)
        return self if returned is self.module else returned

    return method


class SpreadModule(torch.nn.Module):
    """A module spread over devices or ranks; its engine computes the calls.

    ::

        model = anyrig.spread(Net(), loss=criterion)
        model(x, target=y)        the loss of the whole batch, or of the global batch over ranks
        model(x)                  outputs: of the whole batch, or over ranks of this rank's samples
        model.encode(x)           Net.encode; over ranks its gradients are reduced, too
        model.state_dict()        Net's own names

    It shares the inner module's dictionaries of parameters, buffers and children, so reads and
    writes reach the inner module under its own names. A method of the inner module hides a method
    that only a spread model has, such as `refresh`.

    Args:
        engine: what computes; see `anyrig.parallel.engines`.

    Attributes:
        module: the inner module, `engine.module`.
    """

    module: torch.nn.Module
    _engine: Engine

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.__dict__["_engine"] = engine
        self._show(engine.module)

    def _show(self, module: torch.nn.Module) -> None:
        state = self.__dict__
        state["module"] = state["_anyrig_module"] = module
        state.update({name: module.__dict__[name] for name in _SHARED})
        state.update({name: getattr(module, name) for name in self._hidden_by(module)})

    def _hidden_by(self, module: torch.nn.Module) -> list[str]:
        """Return the names of methods of spread models alone that `module` has, too."""
        return [name for name in _OF_SPREAD_MODELS if hasattr(type(module), name)]

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module with a batch, wherever its parts are computed.

        Tensors among the arguments may be on any device. If the model was spread with a loss,
        ``target=`` goes to the loss, and the loss of the whole batch, over ranks the global batch,
        is returned instead of the outputs; the module gets the target, too, if its forward has an
        argument of this name. A floating-point number that the module returns, such as a loss, is
        treated as a mean over samples. ``samples=`` says how many samples the arguments have,
        where they do not show it; a forward that has an argument of this name gets it instead.

        Over ranks, each rank passes its own samples, and gets the outputs for them; in a pipeline
        over ranks each rank passes the same samples.

        Raises:
            BatchError: the batch cannot be divided, the outputs of its parts cannot be joined, or
                the arguments do not show how many samples they have.
            MoveError: an argument without a method `to` has a tensor on another device.
            SpreadError: the module has changed in a way that the engine cannot follow; a layer
                needs the whole batch; or `torch.compile` cannot compile the call.
            RankMismatchError: ranks call the model in different ways.
            Exception: raised by a part; a note says where, and the shapes of its arguments.
        """
        return self._engine.forward(inputs, kwargs)

    def scattered(self, *inputs: Any, **kwargs: Any) -> list[Any]:
        """Call the model and return the outputs where they are, without gathering them.

        ::

            criterion = anyrig.ParallelLoss(nn.CrossEntropyLoss())
            criterion(model.scattered(x), y).backward()

        There is one output for each device of this process that had samples, in the order of the
        rig. `gather` joins them.

        Raises:
            TypeError: the call has ``target=``, and the model was spread with a loss.
            SpreadError: the model is in stages, or in logical shards.
            Exception: as for `forward`.
        """
        refuse_scattered_loss(self._engine.loss, kwargs)
        return self._engine.scattered(self, inputs, kwargs)

    @property
    def device_ids(self) -> list[int | None]:
        """The indices of this process's devices, the lead's first; None for the CPU."""
        return [device.index for device in self._engine.layout.devices]

    def no_sync(self) -> AbstractContextManager[None]:
        """Add up gradients on this rank alone, for the forwards that are called in this block.

        ::

            with model.no_sync():
                for x, y in micro_batches[:-1]:
                    criterion(model(x), y).backward()
            criterion(model(micro_batches[-1].x), micro_batches[-1].y).backward()   # reduces all

        Do not clip or zero gradients or step the optimizer in between. All ranks must use
        `no_sync` for the same forwards; their micro-batches may differ in size. In one process, in
        a pipeline and in logical shards this does nothing: gradients add up in any case.
        """
        return self._engine.no_sync()

    def join(self) -> AbstractContextManager[None]:
        """Let the ranks have different numbers of batches in the loop of this block.

        ::

            with model.join():
                for x, y in loader:            # may end earlier on one rank than on another
                    criterion(model(x), y).backward()
                    optimizer.step(); optimizer.zero_grad()

        A rank whose loop has ended takes part in the others' collectives, without samples, until
        all loops have ended. Then all ranks get the parameters and buffers of a rank that stepped
        last; optimizers keep their state. `anyrig.distribute` makes `join` unnecessary. In one
        process it does nothing.

        Raises:
            SpreadError: this rank had no batch at all, but others had; or a rank that ends early
                would not update its part of the model, as in shards.
        """
        return self._engine.join()

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Reduce gradients over ranks by a hook instead of an all-reduce.

        ::

            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

            model.register_comm_hook(None, fp16_compress_hook)

        Hooks are those of `DistributedDataParallel.register_comm_hook`: ``hook(state, bucket)``
        gets a `torch.distributed.GradBucket` and returns a future of the means over the ranks. The
        gradients in a bucket are weighted by this rank's samples, so their mean is the gradient of
        the global batch. A copy of the model has no hook. In one process this does nothing.

        Raises:
            SpreadError: the ranks have no replicas, or no parameter requires a gradient.
            RuntimeError: a hook is registered already.
        """
        self._engine.register_comm_hook(state, hook)

    def refresh(self) -> None:
        """Make the next call copy every parameter and buffer to the other devices again.

        ::

            for parameter, average in zip(model.parameters(), averages):
                parameter.data.copy_(average)
            model.refresh()

        Call this after writing to ``.data``, replaying a CUDA graph, or any other change that
        PyTorch does not record. The model notices changes by backward passes, optimizers,
        ``load_state_dict`` and in-place operations without this call. Where no device has a copy,
        it does nothing.
        """
        self._engine.refresh()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the norm of all gradients of the model, on every rig, and return it.

        This is the inner module's method of this name, if it has one, otherwise
        `torch.nn.utils.clip_grad_norm_`. Where ranks have parts of the model, every rank must call
        it.
        """
        return self._engine.clip_grad_norm_(max_norm, norm_type, error_if_nonfinite)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's state dict, whose names have no prefix."""
        self._engine.finish_state()
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state of the inner module, or one that `torch.nn.DataParallel` has saved.

        In shards, it may be this rank's shards, or a whole state, which every rank gives alike.

        Raises:
            SpreadError: in a pipeline over ranks, the state has no values for this rank's stages,
                or `assign` is true.
        """
        own = any(name == "module" for name, _ in self.module.named_children())
        if state_dict and not own and all(name.startswith("module.") for name in state_dict):
            state_dict = {name.removeprefix("module."): state_dict[name] for name in state_dict}
        state_dict = self._engine.fit_state(state_dict, assign)
        return self.module.load_state_dict(state_dict, strict, assign)

    # Methods that the inner module's class may override.
    named_modules = _of_the_inner("named_modules")
    apply = _of_the_inner("apply")
    train = _of_the_inner("train")
    zero_grad = _of_the_inner("zero_grad")
    _apply = _of_the_inner("_apply")
    # Called where the wrapper is a child of a larger module.
    _load_from_state_dict = _of_the_inner("_load_from_state_dict")

    @property
    def training(self) -> bool:
        """Whether the inner module is in training mode."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "module" in self.__dict__:  # missing during torch.nn.Module.__init__
            self.module.training = mode

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__.get("module")
        if module is None:  # while a copy is built
            raise AttributeError(name)
        found = getattr(module, name)
        is_own = inspect.ismethod(found) and found.__self__ is module
        if not is_own or hasattr(torch.nn.Module, name):
            return found
        return self._engine.method(found, self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "module":
            raise AttributeError(
                "the module of a spread model cannot be replaced; spread the new module instead"
            )
        if name in self.__dict__ or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self.module, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.module)})

    def __repr__(self) -> str:
        layout = self._engine.layout
        places = ", ".join(map(str, layout.devices))
        if layout.group is not None:
            places = f"{layout.group.world_size} ranks, this one on {places}"
        inner = textwrap.indent(repr(self.module), "  ").lstrip()
        return f"{type(self).__name__}(\n  {layout.way} on {places}\n  (module): {inner}\n)"

    def __getstate__(self) -> dict[str, Any]:
        rebuilt = {*_SHARED, "_anyrig_module", *self._hidden_by(self.module)}
        return {name: value for name, value in self.__dict__.items() if name not in rebuilt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__.update(state)
        self._show(self.__dict__["module"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raise ShardSaveError if this process has only a part of the model."""
        self._engine.refuse_pickle()
        return super().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> SpreadModule:
        """Return a copy with a module of its own; raise SpreadError if it could not compute."""
        self._engine.refuse_copy()
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied


# What a spread model has, and another module has not.
_OF_SPREAD_MODELS = ("scattered", "no_sync", "join", "register_comm_hook", "refresh")


def engine_of(module: object) -> Engine | None:
    """Return the engine of a spread module; None for anything else."""
    return module._engine if isinstance(module, SpreadModule) else None


def explain(model: torch.nn.Module) -> Layout:
    """Return how `spread` has spread a model, and why; print the result.

    While shares are measured, in the first steps, the result has those of the last step.

    Raises:
        SpreadError: `model` was not spread.
    """
    engine = engine_of(model)
    if engine is None:
        raise SpreadError(
            f"this {type(model).__name__} was not spread; pass what anyrig.spread() returned"
        )
    return engine.explain()


def require_plain_module(module: object) -> None:
    """Raise SpreadError unless `module` is a module that is not spread already."""
    if not isinstance(module, torch.nn.Module):
        raise SpreadError(
            f"a {type(module).__name__} is not a torch.nn.Module; spread the module that it calls"
        )
    if isinstance(module, SpreadModule):
        raise SpreadError(
            f"this {type(module.module).__name__} is spread already; spread the module itself, "
            "which is its attribute module"
        )
    for name, each in module.named_modules():
        if isinstance(each, _spread_otherwise()):
            place = f"the module {name!r} is" if name else "this module is"
            inner = "its attribute module" if hasattr(each, "module") else "as it was before"
            raise SpreadError(
                f"{place} a {type(each).__name__}, which PyTorch has spread over devices already; "
                f"spread the module itself, {inner}"
            )


def _spread_otherwise() -> tuple[type, ...]:
    """Return PyTorch's classes of spread modules, without an import of FSDP, which takes long."""
    found: list[type] = [torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel]
    for package, names in _FSDP.items():
        known = sys.modules.get(package)
        found += [getattr(known, name) for name in names if hasattr(known, name)]
    return tuple(found)
