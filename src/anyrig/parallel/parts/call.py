"""Finding the samples in the outputs of one call, and remembering the answers for later calls."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ...errors import BatchError
from ...transfer.containers import children_of, is_container
from ...transfer.tree import Path, format_path, list_leaves, map_leaves
from .divided_dimension import Answer, along_dimension, read_change, read_shapes
from .gather import format_shapes
from .with_samples import is_list

_MOST_REMEMBERED = 1024
_WHOLE = (PackedSequence,)
# Arguments whose value, not only their type, may decide the form of the outputs.
_SWITCHES = (type(None), bool, str)


@dataclass
class Call:
    """One call of a module whose batch was divided into parts.

    Methods raise BatchError if neither the shapes nor one more call of the module give an answer.
    """

    samples: Sequence[int]  # of each part
    dim: int  # along which the batch was divided
    like: Callable[[], Hashable]  # returns a key, equal for calls with outputs of the same form
    once_more: Callable[[int], Any]  # returns the outputs for the first n samples of the batch
    known: dict[Hashable, Answer]  # the answers of earlier calls; this call adds its own
    packs: Callable[[], bool]  # returns whether the module may pack sequences
    # For each number of samples: shapes of tensors, lengths of lists, and integers, by their paths
    # in the outputs.
    _forms: dict[int, dict[Path, tuple[int, ...]]] = field(default_factory=dict)

    @cached_property
    def _like(self) -> Hashable:
        return self.like()

    def find_samples(self, tensors: Sequence[Tensor], path: Path) -> Answer:
        """Return which dimension has the samples in the parts' tensors at `path`."""
        shapes = [tuple(tensor.shape) for tensor in tensors]
        answer = read_shapes(shapes, self.samples, self.dim)
        # One element from each part is an entry that a mask chose (two parts together have two) or
        # a number for the whole part, such as a mean (two parts together have one).
        single = answer == Answer() and tensors[0].numel() == 1 and len(tensors) > 1
        if not answer.candidates and not single:
            return answer
        key = (self._like, path, len(shapes[0]), single)
        found = self.known.get(key)
        if single:
            if found is None:
                shape = self._find_shape(tensors, path, self.samples[0] + self.samples[1])
                changed = tuple(i for i, size in enumerate(shape) if size != 1)
                along = along_dimension(self.dim, shape)
                found = Answer(along) if changed == (along,) else Answer(candidates=changed)
                self._remember(key, found)
            return found
        if found is None or (found.dim is not None and found.dim not in answer.candidates):
            shape = self._find_shape(tensors, path, self.samples[0] + 1)
            found = read_change(answer, shapes[0], self.samples[0], shape, self.dim)
            self._remember(key, found)
        if found.dim is None:
            return found
        # Lengths may differ, too: in [4, 3, 8] and [5, 3, 8], dimension 1 can have the samples.
        sizes = [set(sizes) for sizes in zip(*shapes, strict=True)]
        differing = tuple(i for i in range(len(sizes)) if i != found.dim and len(sizes[i]) > 1)
        return Answer(differing=differing) if differing else found

    def is_constant(self, numbers: Sequence[int], path: Path) -> bool:
        """Return whether integers that all parts share are independent of the sample count."""
        samples = self.samples[0]
        if len(set(self.samples)) > 1 or all(n == 0 or n % samples for n in numbers):
            return True
        key = (self._like, path, "numbers")
        if key not in self.known:
            seen = f"{', '.join(map(str, numbers))} from each part"
            if self._find(path, seen, samples + 1) != tuple(numbers):
                return False
            self._remember(key, Answer())
        return True

    def grows(self, path: Path) -> bool:
        """Return whether the lists at `path`, each as long as its part, have an entry a sample."""
        key = (self._like, path, "entries")
        if key not in self.known:
            samples = self.samples[0] + 1
            seen = f"lists of {list_counts(self.samples)} entries"
            answer = Answer(0) if self._find(path, seen, samples) == (samples,) else Answer()
            self._remember(key, answer)
        return self.known[key].dim is not None

    def _find_shape(self, tensors: Sequence[Tensor], path: Path, samples: int) -> tuple[int, ...]:
        seen = f"the shapes {format_shapes(tensors)}"
        shape = self._find(path, seen, samples)
        if shape is None or len(shape) != tensors[0].dim():
            raise self._unclear(path, seen, samples)
        return shape

    def _find(self, path: Path, seen: str, samples: int) -> tuple[int, ...] | None:
        """Return the shape, or the integers, at `path` in the outputs for `samples` samples."""
        try:
            if samples not in self._forms:
                forms: dict[Path, tuple[int, ...]] = {}
                _note_forms(self.once_more(samples), (), forms)
                self._forms[samples] = forms
            return self._forms[samples].get(path)
        except Exception as error:
            first_line = f"{error}".partition("\n")[0]
            failure = f" ({type(error).__name__}: {first_line})"
            raise self._unclear(path, seen, samples, failure) from error

    def _remember(self, key: Hashable, answer: Answer) -> None:
        if len(self.known) >= _MOST_REMEMBERED:  # the calls keep changing their form
            self.known.clear()
        if not answer.candidates:
            self.known[key] = answer

    def _unclear(self, path: Path, seen: str, samples: int, failure: str = "") -> BatchError:
        return BatchError(
            f"cannot join {format_path(path)} of what the replicas returned: {seen} do not show "
            f"which dimension has the {list_counts(self.samples)} samples, and another call of the "
            f"module, with {samples} samples, did not show it either{failure}. Return the samples "
            f"in dimension {self.dim}, for example with h.transpose(0, 1); or give the devices "
            "different numbers of samples. A mean must be a tensor without dimensions"
        )


def _note_forms(value: Any, path: Path, forms: dict[Path, tuple[int, ...]]) -> None:
    shape = value if isinstance(value, torch.Size) else getattr(value, "shape", None)
    if isinstance(shape, tuple):  # of a tensor, or an array of NumPy
        forms[path] = tuple(shape)
    elif type(value) is int:
        forms[path] = (value,)
    elif is_container(value, movable=True):
        if is_list(value):
            forms[path] = (len(value),)
        for part, child in children_of(value):
            _note_forms(child, (*path, part), forms)


def list_counts(samples: Sequence[int]) -> str:
    """Return the parts' sample counts for an error message: ``"3, 3 and 1"``."""
    *first, last = map(str, samples)
    return f"{', '.join(first)} and {last}" if first else last


def may_pack(module: torch.nn.Module, arguments: Any) -> bool:
    """Return whether a module may pack sequences: it is recurrent, or is given packed sequences."""
    recurrent = any(isinstance(each, torch.nn.RNNBase) for each in module.modules())
    is_packed = (isinstance(leaf, PackedSequence) for leaf, _ in list_leaves(arguments, _WHOLE))
    return recurrent or any(is_packed)


def describe_call(
    module: torch.nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]
) -> Hashable:
    """Return a key that is equal for calls whose outputs have the same form."""
    forms = [
        value
        if isinstance(value, _SWITCHES)
        else (value.dim() if isinstance(value, Tensor) else type(value).__qualname__)
        for value in (*inputs, *named.values())
    ]
    return module.training, len(inputs), *named, *forms


def with_copies(part: Any) -> Any:
    """Return the arguments of a call with copies of their tensors, which the module may write."""
    return map_leaves(part, lambda leaf, _: leaf.clone() if isinstance(leaf, Tensor) else leaf)


@contextmanager
def without_trace(called: Sequence[Any], devices: Sequence[torch.device]) -> Iterator[None]:
    """Keep calls of modules, which lie on `devices`, free of side effects within the block.

    What else is among `called`, such as a function, is ignored. Gradients are disabled, buffers are
    copies, and attributes, the entries of lists, dicts, sets and deques, and random number
    generators are restored afterwards. Effects of hooks and changes inside other objects of the
    modules remain.
    """
    modules = [
        layer for each in called if isinstance(each, torch.nn.Module) for layer in each.modules()
    ]
    attributes = [(each.__dict__, dict(each.__dict__)) for each in modules]
    entries = [
        (value, copy(value))
        for _, before in attributes
        for value in before.values()
        if type(value) in (list, dict, set, deque)
    ]
    buffers = [(each._buffers, dict(each._buffers)) for each in modules]
    copies: dict[int, Tensor] = {}
    python_numbers = random.getstate()
    # The generator of the CPU is restored in any case.
    forked = [device for device in devices if device.type != "cpu"]
    kind = forked[0].type if forked else "cuda"
    try:
        with torch.random.fork_rng(forked, device_type=kind), torch.no_grad():
            for own, before in buffers:
                for name, buffer in before.items():
                    if buffer is not None:
                        own[name] = copies.setdefault(id(buffer), buffer.clone())
            yield
    finally:
        random.setstate(python_numbers)
        for own, before in (*buffers, *attributes):
            for name in own.keys() - before.keys():
                del own[name]
            own.update(before)
        for value, before in entries:
            _restore_entries(value, before)


def _restore_entries(value: Any, before: Any) -> None:
    """Let a list, dict, set or deque have the entries of its copy again."""
    if _identities(value) != _identities(before):
        value.clear()
        if isinstance(value, (list, deque)):
            value.extend(before)
        else:
            value.update(before)


def _identities(value: Any) -> list[int]:
    entries = [each for pair in value.items() for each in pair] if type(value) is dict else value
    return [id(each) for each in entries]
