"""`Recorder`, which watches the training steps of this process.

::

    DataLoader ──▶ batch          recorded, or replaced by the recorded one        loaders.py
    model(batch)                  its samples; on one device, initial values first
    loss.backward()               the loss
    optimizer.step()  ─ before ─  gradients and parameters, by name          names.py, piece.py
                      ─ after ──  parameters

Dropout is off (`dropout.py`). Nothing here communicates.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.compiler import is_exporting
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from ..observe.census import find_instances, parameters_of
from ..observe.events import Events
from ..observe.hooks import Observer
from ..observe.source_line import current_line, is_library_code
from ..private_names import refuse_missing
from .backward_gradients import BackwardGradients
from .divisors import divisors_of
from .dropout import DropoutOff, random_state
from .flat_shards import FlatPart, find_flat_parts
from .label_counts import LabelCounts
from .loader_lengths import LoaderLengths
from .loaders import RecordedLoaders, widen
from .names import NamedParameter, clean_name, name_parameters, unwrap
from .piece import Piece, piece_of, write_whole
from .pipeline_stages import stage_of, stages_of_parameters
from .precision import dtypes_of
from .records import NO_MODULE, LossRecord, ParameterFacts, RankRecord, StepRecord
from .replay import Replay
from .samples import count_labels, hash_samples


class EnoughSteps(SystemExit):
    """Ends a program after the steps to compare, with the exit status 0."""


class Recorder:
    """Records the steps of this process, from `start` to `stop`."""

    def __init__(
        self,
        steps: int,
        *,
        widens: bool,
        ends_program: bool = False,
        replay: Replay | None = None,
    ) -> None:
        """Record nothing yet.

        Args:
            steps: how many steps to record.
            widens: whether the program computes in float64; then float32 inputs are converted.
            ends_program: whether to end the program after these steps.
            replay: what data loaders deliver and models begin with; None for their own.
        """
        self._most_steps = steps
        self._widens = widens
        self._ends_program = ends_program
        self._initial = None if replay is None else replay.initial
        self._dropout = DropoutOff()
        on_end = self._enough if ends_program else lambda: None
        batches = None if replay is None else replay.batches
        self._loaders = RecordedLoaders(lambda: len(self._steps), widens, batches, on_end)
        self._lengths = LoaderLengths(() if replay is None else replay.lengths)
        self._thread = threading.get_ident()
        self._observer = Observer(
            Events(
                module_called=self._before_forward,
                module_finished=self._after_forward,
                backward_begun=self._note_loss,
                backward_ended=self._after_backward,
                step_begun=self._before_step,
                step_ended=self._after_step,
            )
        )
        self._steps: list[StepRecord] = []
        self._losses: list[LossRecord] = []
        self._forwards: list[tuple[str, ...]] = []
        self._sample_shape: tuple[int, ...] | None = None
        self._labels = LabelCounts()
        self._dtypes: set[str] = set()
        self._norms: dict[str, None] = {}
        self._draws = self._has_batch_statistics = self._shards_data = False
        self._running: list[nn.Module] = []
        self._random_before = ""
        self._lines: weakref.WeakKeyDictionary[nn.Module, tuple[str | None, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._stages: weakref.WeakKeyDictionary[nn.Module, int | None] = weakref.WeakKeyDictionary()
        self._begun: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # Outermost modules, in the order of their first calls.
        self._called: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._depth = 0
        self.place = int(os.environ.get("RANK") or "0"), int(os.environ.get("WORLD_SIZE") or "1")
        self._backward_gradients = BackwardGradients()
        self._gradients: dict[str, Piece] = {}
        self._changed_gradients: dict[str, Piece] = {}
        self._before: dict[str, Piece] = {}
        self._step_line: str | None = None
        self._parameters: dict[str, ParameterFacts] = {}

    def start(self) -> None:
        """Record from now on."""
        refuse_missing("verification")
        self._observer.start()
        self._loaders.start()
        replacements = self._observer.replacements
        self._dropout.start(replacements)
        self._labels.start(replacements)
        self._lengths.start(replacements)
        replacements.around(Tensor, "float", self._to_float)

    def stop(self) -> None:
        """Record nothing from now on. A second call has no effect."""
        self._observer.stop()
        self._loaders.stop()

    @property
    def has_record(self) -> bool:
        """Whether there are steps, or a reason why there are none."""
        return bool(self._steps) or self._loaders.failure is not None

    def record(self, rank: int, world_size: int) -> RankRecord:
        """Return what was recorded."""
        return RankRecord(
            rank,
            world_size,
            tuple(self._steps),
            dict(self._parameters),
            tuple(sorted(self._dtypes)),
            tuple(self._norms),
            self._has_batch_statistics,
            self._shards_data,
            self._draws,
            self._dropout.was_called,
            tuple(self._loaders.batches),
            self._loaders.failure,
            tuple(self._lengths.recorded),
        )

    def _to_float(
        self, original: Callable[..., Tensor], tensor: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        # Calls from PyTorch itself still convert: a gradient scaler, for example, needs float32.
        caller = sys._getframe(2).f_code
        if self._widens and tensor.dtype == torch.float64 and not is_library_code(caller):
            return tensor
        return original(tensor, *args, **kwargs)

    @property
    def _is_recording(self) -> bool:
        return len(self._steps) < self._most_steps and threading.get_ident() == self._thread

    def _note_loss(self, loss: Any, gradients: Any) -> None:
        if gradients is not None or not isinstance(loss, Tensor) or not self._is_recording:
            return
        if isinstance(loss, DTensor):
            if not all(placement.is_replicate() for placement in loss.placements):
                return
            loss = loss.to_local()
        if loss.numel() != 1:
            return
        if not self._steps and not self._losses:
            self._dtypes |= dtypes_of(loss)
        self._losses.append(LossRecord(float(loss.detach()), _line(), divisors_of(loss)))

    def _after_backward(self) -> None:
        if self._is_recording:
            self._backward_gradients.keep()

    def _before_forward(self, module: nn.Module, inputs: Any) -> Any:
        if not self._is_recording or is_exporting():
            return None
        if not self._running:
            self._running.append(module)
            self._random_before = _random_states()
            self._called.setdefault(module, len(self._called))
            self._begin_module(module)
            changed = widen(inputs) if self._widens else inputs
        else:
            self._running.append(module)
            changed = None
        if module not in self._lines and torch.is_grad_enabled():
            self._lines[module] = _line(), len(self._lines)
        return changed

    def _after_forward(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        if is_exporting() or threading.get_ident() != self._thread or not self._running:
            return
        while self._running and self._running.pop() is not module:
            pass  # a module whose call raised, so that its hook did not run
        if self._running or not (self._is_recording and torch.is_grad_enabled()):
            return
        self._draws |= self._random_before != _random_states()
        hashed = hash_samples((args, kwargs))
        if hashed is None or not module.training:
            return
        if module not in self._stages:
            self._stages[module] = stage_of(module)
        if self._stages[module]:
            return  # the outputs of another stage are no samples
        if self._stages[module] == 0 and not self._steps and self._forwards == [hashed[0]]:
            return  # PyTorch computes the first micro-batch once to see shapes, and then again
        self._forwards.append(hashed[0])
        self._sample_shape = hashed[1]

    def _begin_module(self, module: nn.Module) -> None:
        """Give a model its initial values before its first forward pass."""
        if self._initial is None or module in self._begun:
            return
        self._begun.add(module)
        kind = type(unwrap(module)).__name__
        has_optimizer = bool(find_instances(Optimizer)[Optimizer])
        trained = {id(one.parameter): one.name for one in self._name_all()}
        with torch.no_grad():
            for long_name, parameter in module.named_parameters():
                name = clean_name(long_name)
                if has_optimizer:  # others, such as a teacher's, may have the names of trained ones
                    value = self._initial.get(trained.get(id(parameter), ""))
                else:
                    value = self._initial.get(name, self._initial.get(f"{kind}.{name}"))
                if value is not None and value.shape == parameter.shape:
                    write_whole(parameter, value)

    def _name_all(self, more: Sequence[Tensor] = ()) -> list[NamedParameter]:
        """Return the parameters of all optimizers in the models called so far, and `more`.

        Models are in the order of their first calls, so that names are the same in both runs.
        """
        optimizers = find_instances(Optimizer)[Optimizer]
        trained = {id(one) for optimizer in optimizers for one in parameters_of(optimizer)}
        called = (one for module in self._called for one in module.parameters())
        ordered = [one for one in called if id(one) in trained]
        return name_parameters([*{id(one): one for one in (*ordered, *more)}.values()])

    def _before_step(self, optimizer: Optimizer) -> None:
        self._depth += 1
        if self._depth > 1 or not self._is_recording:
            return
        self._step_line = _line()
        self._gradients, self._changed_gradients, self._before = {}, {}, {}
        known = self._steps[0].before if self._steps else {}
        for name, piece, gradient, parameter in self._pieces(optimizer):
            if gradient is not None:
                self._gradients[name] = gradient
                changed = self._backward_gradients.changed(parameter, gradient)
                if changed is not None:
                    self._changed_gradients[name] = changed
            if name not in known:
                self._before[name] = piece

    def _after_step(self, optimizer: Optimizer) -> None:
        self._depth -= 1
        if self._depth > 0 or not self._is_recording:
            return
        if dist.is_available() and dist.is_initialized():
            self.place = dist.get_rank(), dist.get_world_size()
        after = {name: piece for name, piece, *_ in self._pieces(optimizer)}
        labels = self._labels.take() or tuple(
            found
            for one in self._loaders.batches
            if one.step == len(self._steps) and (found := count_labels(one.batch)) is not None
        )
        self._steps.append(
            StepRecord(
                self._gradients,
                self._before,
                after,
                tuple(self._losses),
                tuple(self._forwards),
                self._sample_shape,
                labels,
                self._dropout.take_states(),
                self._step_line,
                self._changed_gradients,
            )
        )
        self._backward_gradients.end_step()
        self._losses.clear()
        self._forwards.clear()
        if len(self._steps) == self._most_steps and self._ends_program:
            self._enough()

    def _enough(self) -> None:
        self.stop()
        raise EnoughSteps(0)

    def _pieces(self, optimizer: Optimizer) -> Iterator[tuple[str, Piece, Piece | None, Tensor]]:
        """Yield for each parameter its name, this rank's pieces of it and of its gradient, and it.

        The parameter of a part of FSDP's flat parameter is the flat one.
        """
        parameters = parameters_of(optimizer)
        flat: dict[int, tuple[FlatPart, ...]] = {}
        stages = stages_of_parameters()
        named = {id(one.parameter): one for one in self._name_all(parameters)}
        for number, parameter in enumerate(parameters):
            one = named[id(parameter)]
            if one.owner is None:
                one = replace(one, name=f"parameter {number}")
            if one.root is not None and id(one.root) not in flat:
                flat |= {id(one.root): (), **find_flat_parts(one.root)}
            gradient = one.parameter.grad
            if id(one.parameter) in flat:
                for part in flat[id(one.parameter)]:
                    self._note_facts(part.name, part.owner, shards_data=True)
                    piece = part.piece_of(one.parameter)
                    self._note_type(piece)
                    flat_gradient = None if gradient is None else part.piece_of(gradient)
                    yield part.name, piece, flat_gradient, one.parameter
                continue
            whole = piece_of(one.parameter)
            if whole is not None:
                stage = stages.get(id(one.parameter))
                self._note_facts(
                    one.name, one.owner, shards_data=_is_sharded_data(one), stage=stage
                )
                self._note_type(whole)
                whole_gradient = None if gradient is None else piece_of(gradient)
                yield one.name, whole, whole_gradient, one.parameter

    def _note_facts(
        self, name: str, owner: nn.Module | None, *, shards_data: bool, stage: int | None = None
    ) -> None:
        if name in self._parameters:
            return
        self._shards_data |= shards_data
        if owner is None:
            self._parameters[name] = ParameterFacts(NO_MODULE, stage=stage)
            return
        if isinstance(owner, _BatchNorm) and owner.training:
            self._has_batch_statistics = True
        if is_norm_of_one_rank(owner):
            self._norms.setdefault(name.rpartition(".")[0])
        line, order = self._lines.get(owner, (None, -1))
        self._parameters[name] = ParameterFacts(type(owner).__name__, line, order, stage)

    def _note_type(self, piece: Piece) -> None:
        self._dtypes.add(str(piece.values.dtype).removeprefix("torch."))


def is_norm_of_one_rank(module: nn.Module) -> bool:
    """Return whether a batch norm uses the statistics of this rank's samples alone."""
    return (
        isinstance(module, _BatchNorm)
        and module.training
        and not isinstance(module, nn.SyncBatchNorm)
    )


def _is_sharded_data(one: NamedParameter) -> bool:
    """Return whether FSDP2 alone divides a parameter, so that ranks share no samples."""
    return (
        isinstance(one.parameter, DTensor)
        and one.parameter.device_mesh.ndim == 1
        and isinstance(one.root, FSDPModule)
    )


def _line() -> str | None:
    line = current_line()
    return None if line is None else f"{Path(line.file).name}:{line.number}"


def _random_states() -> str:
    states = random_state(torch.device("cpu"))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += random_state(torch.device("cuda", torch.cuda.current_device()))
    return states
