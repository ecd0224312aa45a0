"""Copies of a module on other devices, kept from step to step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ....devices.place import Places
from ....errors import SpreadError
from ....private_names import refuse_missing
from ...device_ids import resolve_devices
from ...own_class import has_own_class, require_frozen
from .broadcast import Broadcast
from .buckets import Bucket, Slot, form_of, make_buckets
from .gradients import Mark, Step
from .kept_tensors import join_kept
from .meeting import Meeting
from .mirror import Mirror, inner_module
from .replica_tensors import Reader


class ReplicaSet:
    """The replicas of one module: the module itself on the lead, and copies on the other devices.

    `devices` has the lead, then the others in the order in which they pass copies on.
    """

    def __init__(self, module: torch.nn.Module, devices: Sequence[torch.device]) -> None:
        self.module = module
        self.lead, *others = devices
        self._others = tuple(others)
        self._readers = [Reader(device) for device in range(len(others))]
        self._broadcast = Broadcast(self.lead, others)
        self._mirrors: dict[int, Mirror] = {}
        self._slots: dict[int, Slot] = {}
        self._parameters: list[Bucket] = []
        self._buffers: list[Bucket] = []
        self._zero: torch.Tensor | None = None
        self._running: list[Bucket] = []  # running statistics, a part of the buffers
        self._was_training = True
        self._refreshes = False
        self._steps_seen = 0

    def begin(
        self, active: Sequence[int], meeting: Meeting | None = None, mark: Mark = lambda _: None
    ) -> list[torch.nn.Module]:
        """Return the replicas on the other devices at positions `active`, ready for a step.

        A replica that reads a parameter after the meeting has stopped raises `Stopped`. A device
        calls `mark` with its stream each time it has queued a part of its backward pass.
        Raise SpreadError if a parameter or buffer is not on the lead, or a module cannot be copied.
        """
        # Idle replicas keep the previous step: the recomputation of a checkpoint may read it.
        for device in active:
            self._readers[device].rest()
        learns = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.no_grad():
            self._follow(learns)
            self._broadcast.send(self._buffers, self._parameters, active)
            if self._zero is None:
                self._zero = torch.zeros((), device=self.lead)
        step = Step(self.lead, self._zero, self._others, self._buckets, mark)
        tokens = step.begin(active) if active else {}
        varying = [mirror for mirror in self._mirrors.values() if mirror.varies]
        for among, device in enumerate(active):
            self._readers[device].begin(step, tokens, among, meeting)
            for mirror in varying:
                mirror.vary(device, self._others[device], self._slots, self._mirrors)
        root = self._mirrors[id(self.module)]
        return [root.copies[device] for device in active]

    def join_attributes(self, active: Sequence[int], samples: Sequence[int], dim: int) -> None:
        """Join what a forward has left in attributes; see `kept_tensors.join_kept`."""
        join_kept(self._mirrors.values(), active, samples, dim)

    def end(self) -> None:
        """Let the lead's stream write parameters again after their copies have left."""
        self._broadcast.hold_writes()

    def adopt_buffers(self, device: int) -> None:
        """Copy the buffers of another device to the module, after a step without the lead."""
        with torch.no_grad():
            for mirror in self._mirrors.values():
                theirs = mirror.copies[device].__dict__["_buffers"]
                buffers = mirror.module._buffers
                for name, buffer in list(buffers.items()):
                    value = theirs.get(name)
                    if buffer is None or value is None:
                        continue
                    if value.shape == buffer.shape and value.dtype == buffer.dtype:
                        # Batch normalization does not increment the version of its statistics:
                        # graphs that saved them may still run backward.
                        target = buffer.data if name.startswith("running_") else buffer
                        target.copy_(value, non_blocking=True)
                    else:
                        buffers[name] = value.detach().to(self.lead)

    def refresh(self) -> None:
        """Make the next step send everything, whatever the tensors' versions."""
        self._refreshes = True

    @property
    def _buckets(self) -> list[Bucket]:
        return [*self._parameters, *self._buffers]

    def _follow(self, learns: bool) -> None:
        """Update structure and buckets to match the module's present state.

        Fused optimizers and writes to ``parameter.data`` do not increment versions, so everything
        that learns is sent whenever an optimizer may have stepped. `learns` says whether the coming
        step may end in a backward pass.
        """
        changed = [mirror for mirror in self._mirrors.values() if mirror.has_changed()]
        if changed or not self._mirrors:
            self._follow_structure(changed)
        while None in (changes := [bucket.look() for bucket in self._buckets]):
            self._plan()
        steps = _optimizer_steps().total()
        stepped, self._steps_seen = learns or steps != self._steps_seen, steps
        # Batch normalization does not increment the version of its running statistics.
        training = any(mirror.module.training for mirror in self._mirrors.values())
        running = self._running if training or self._was_training else []
        self._was_training = training
        refreshes, self._refreshes = self._refreshes, False
        for mirror in self._mirrors.values() if refreshes else ():
            mirror.forget()
        for bucket, has_changed in zip(self._buckets, changes, strict=True):
            suspect, bucket.suspect = bucket.suspect, learns and bucket.learns
            suspect = suspect or refreshes or bucket in running or (stepped and bucket.learns)
            if suspect and not has_changed:
                bucket.stamp += 1

    def _follow_structure(self, changed: Sequence[Mirror]) -> None:
        modules = list(_modules_of(self.module))
        self._check(modules)  # before any state changes, so that the next step raises again
        tensors, known = _tensors_of(modules), self._mirrors
        self._mirrors = {
            id(module): known.get(id(module)) or Mirror(module, self._readers) for module in modules
        }
        if self._mirrors.keys() != known.keys() or not self._rebind(tensors):
            self._plan()
        else:
            for mirror in changed:
                mirror.build(self._slots, self._mirrors)

    def _rebind(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Assign replaced tensors of the same form to their slots; return False if any differs."""
        slots = list(self._slots.values())
        if [form_of(slot.tensor) for slot in slots] != list(map(form_of, tensors)):
            return False
        for slot, tensor in zip(slots, tensors, strict=True):
            if tensor is not slot.tensor:
                slot.tensor, slot.seen = tensor, (None, 0)
        self._slots = {id(slot.tensor): slot for slot in slots}
        return True

    def _plan(self) -> None:
        """Make new slots and buckets for all tensors."""
        modules = [mirror.module for mirror in self._mirrors.values()]
        self._check(modules)
        self._slots = {id(tensor): Slot(tensor) for tensor in _tensors_of(modules)}
        # A tensor of several kinds counts as a parameter first, then as running statistics.
        parameters = {id(tensor) for module in modules for tensor in module._parameters.values()}
        running = {
            id(tensor)
            for module in modules
            for name, tensor in module._buffers.items()
            if name.startswith("running_")
        } - parameters
        rest = self._slots.keys() - parameters - running
        self._parameters, self._running, others = (
            make_buckets([slot for key, slot in self._slots.items() if key in kind], self._others)
            for kind in (parameters, running, rest)
        )
        self._buffers = [*self._running, *others]
        for mirror in self._mirrors.values():
            mirror.build(self._slots, self._mirrors)

    def _check(self, modules: Iterable[torch.nn.Module]) -> None:
        for module in modules:
            kind = type(module).__name__
            if isinstance(module, torch.jit.ScriptModule):
                raise SpreadError(
                    f"{kind} is TorchScript, whose parameters cannot be read lazily; spread the "
                    "module it was made from"
                )
            if "_orig_mod" in module._modules:
                raise SpreadError(
                    f"{kind} was made by torch.compile(), and calls the module it was made from "
                    "on one device; spread that module, which is its attribute _orig_mod. Or start "
                    "a process for each device, where the same line compiles: anyrig run SCRIPT"
                )
        require_frozen(self.module)
        check_place(self.module, self.lead)


def replicate(module: torch.nn.Module, devices: Places) -> list[torch.nn.Module]:
    """Return one replica of `module` for each device, in order; the first is `module` itself.

    Each call makes new replicas with the present values; their gradients reach the parameters of
    `module`. With `scatter`, `parallel_apply` and `gather` it makes a step of `DataParallel`.

    Args:
        module: the module, on the first device.
        devices: a rig or a list, each device once.

    Raises:
        SpreadError: a parameter or buffer is not on the first device, a device is named twice, or
            no device is named.
    """
    refuse_missing("parallel")
    resolved = resolve_devices(devices)
    replicas = ReplicaSet(module, resolved)
    copies = replicas.begin(range(len(resolved) - 1)) if len(resolved) > 1 else []
    replicas.end()
    return [module, *copies]


def check_place(module: torch.nn.Module, lead: torch.device) -> None:
    """Raise SpreadError unless parameters and buffers are strided, with shapes, and on `lead`."""
    for kind, named in (
        ("parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        for name, tensor in named:
            if torch.nn.parameter.is_lazy(tensor):
                raise SpreadError(
                    f"{kind} {name} has no shape yet; call the module itself with one batch first"
                )
            if tensor.layout != torch.strided:
                raise SpreadError(
                    f"{kind} {name} has layout {tensor.layout}, which is not copied to other "
                    "devices; keep its parts as strided tensors"
                )
            if tensor.device != lead:
                raise SpreadError(
                    f"module must have its parameters and buffers on device {lead}, the lead, but "
                    f"{kind} {name} is on {tensor.device}; move it with module.to({str(lead)!r})"
                )


def _modules_of(root: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield each module of a tree once, in the order of registration."""
    seen = set()
    waiting = [root]
    while waiting:
        module = inner_module(waiting.pop())
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            children = [child for child in module._modules.values() if child is not None]
            waiting += reversed(children)


def _tensors_of(modules: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Return each parameter and buffer once, in the order of modules.

    Tensors of a custom class are not copied in buckets; see `Mirror.vary`.
    """
    found = {
        id(tensor): tensor
        for module in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None and not has_own_class(tensor)
    }
    return list(found.values())


@cache
def _optimizer_steps() -> Counter[str]:
    """Return a counter of all optimizer steps in this process since the first call."""
    steps: Counter[str] = Counter()
    register_optimizer_step_post_hook(lambda *_: steps.update(["steps"]))
    return steps
