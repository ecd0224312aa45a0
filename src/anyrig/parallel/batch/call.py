"""What is known of a call of a module, and what another call finds out: see `divided_dimension`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...errors import BatchError
from ...transfer.containers import attributes_of, is_container, items_of
from ...transfer.tree import Path, format_path
from .divided_dimension import Answer, read_change, read_shapes
from .joining import format_shapes

_MOST_REMEMBERED = 1024


class Call:
    """One call of a module whose batch was divided into parts.

    Args:
        samples: how many each part had.
        dim: the dimension along which the batch was divided.
        like: returns a key that is equal for calls whose outputs are of one form.
        once_more: called with a number of samples; returns what the module returns for that many
            from the beginning of the batch.
        known: what earlier calls have found; this one adds to it.
    """

    def __init__(
        self,
        samples: Sequence[int],
        dim: int,
        like: Callable[[], Hashable],
        once_more: Callable[[int], Any],
        known: dict[Hashable, Answer],
    ) -> None:
        self.samples = tuple(samples)
        self.dim = dim
        self._like = like
        self._once_more = once_more
        self._known = known
        # By the number of samples, what a call once more returned.
        self._returned: dict[int, dict[Path, tuple[int, ...]]] = {}

    def find_samples(self, tensors: Sequence[Tensor], path: Path) -> Answer:
        """Return where the samples are in the parts' tensors at `path`.

        Raises:
            BatchError: the shapes do not say, and calling the module once more failed.
        """
        answer = self._read(tensors, path)
        if answer == Answer() and tensors[0].numel() == 1 and len(tensors) > 1:
            return self._find_entries(tensors, path)
        return answer

    def _read(self, tensors: Sequence[Tensor], path: Path) -> Answer:
        shapes = [tensor.shape for tensor in tensors]
        answer = read_shapes(shapes, self.samples, self.dim)
        if not answer.candidates:
            return answer
        place = (self._like_key, path, len(shapes[0]))
        found = self._known.get(place)
        if found is None or (found.dim is not None and found.dim not in answer.candidates):
            found = self._ask_tensors(answer, tensors, path)
            self._remember(place, found)
        if found.dim is None:
            return found
        # Lengths may differ as well: of [4, 3, 8] and [5, 3, 8], dimension 1 can have the samples.
        rest = [position for position in range(len(shapes[0])) if position != found.dim]
        differing = tuple(i for i in rest if len({shape[i] for shape in shapes}) > 1)
        return Answer(differing=differing) if differing else found

    def is_constant(self, numbers: Sequence[int], path: Path) -> bool:
        """Say whether whole numbers that are equal in all parts are no counts of their samples.

        Raises:
            BatchError: they could be, and calling the module once more failed.
        """
        samples = self.samples[0]
        if len(set(self.samples)) > 1 or all(n == 0 or n % samples for n in numbers):
            return True
        place = (self._like_key, path, "numbers")
        if place not in self._known:
            what = f"{', '.join(map(str, numbers))} from each part"
            if self._find(path, what, samples + 1) != tuple(numbers):
                return False
            self._remember(place, Answer())
        return True

    def _find_entries(self, tensors: Sequence[Tensor], path: Path) -> Answer:
        """Return where the samples are if each part returned one element, in some dimensions.

        A mask may have chosen one entry of each part: then two parts together have two. A number
        for the whole part, such as a mean, stays one.
        """
        first = tensors[0].shape
        place = (self._like_key, path, len(first), "entries")
        if place not in self._known:
            both = self.samples[0] + self.samples[1]
            what = f"the shapes {format_shapes(tensors)}"
            shape = self._find(path, what, both)
            if shape is None or len(shape) != len(first):
                raise self._not_clear(path, what, both)
            changed = tuple(i for i, size in enumerate(shape) if size != 1)
            along = self.dim % len(first) if -len(first) <= self.dim < len(first) else None
            found = Answer(along) if changed == (along,) else Answer(candidates=changed)
            self._remember(place, found)
            return found
        return self._known[place]

    def _ask_tensors(self, answer: Answer, tensors: Sequence[Tensor], path: Path) -> Answer:
        shapes = f"the shapes {format_shapes(tensors)}"
        shape = self._find(path, shapes, self.samples[0] + 1)
        first = tensors[0].shape
        if shape is None or len(shape) != len(first):
            raise self._not_clear(path, shapes, self.samples[0] + 1)
        return read_change(answer, first, self.samples[0], shape, self.dim)

    def _remember(self, place: Hashable, answer: Answer) -> None:
        if len(self._known) >= _MOST_REMEMBERED:  # each call was unlike all others
            self._known.clear()
        if not answer.candidates:
            self._known[place] = answer

    @cached_property
    def _like_key(self) -> Hashable:
        return self._like()

    def _find(self, path: Path, what: str, samples: int) -> tuple[int, ...] | None:
        """Return the shape, or the numbers, at `path` of what the module returns for `samples`."""
        try:
            if samples not in self._returned:
                self._returned[samples] = dict(_walk(self._once_more(samples), ()))
        except Exception as error:
            told = f"{error}".partition("\n")[0]
            failure = f" ({type(error).__name__}: {told})"
            raise self._not_clear(path, what, samples, failure) from error
        return self._returned[samples].get(path)

    def _not_clear(self, path: Path, what: str, samples: int, failure: str = "") -> BatchError:
        return BatchError(
            f"cannot join {format_path(path)} of what the replicas returned: {what} do not say "
            f"which dimension has the {list_counts(self.samples)} samples, and a call of the "
            f"module with {samples} samples, to see what changes, did not either"
            f"{failure}. Return the samples in dimension {self.dim}, for example with "
            "h.transpose(0, 1); or give the devices different numbers of samples. Return a mean "
            "without dimensions"
        )


def list_counts(samples: Sequence[int]) -> str:
    """Return how many samples the parts had, as errors list them: ``"3, 3 and 1"``."""
    *first, last = map(str, samples)
    return f"{', '.join(first)} and {last}" if first else last


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield the shapes of tensors, and whole numbers, with their places."""
    if isinstance(value, Tensor):
        yield path, tuple(value.shape)
    elif isinstance(value, torch.Size):
        yield path, tuple(value)
    elif type(value) is int:
        yield path, (value,)
    elif is_container(value):
        for part, item in items_of(value):
            yield from _walk(item, (*path, part))
        for name, attribute in attributes_of(value).items():
            yield from _walk(attribute, (*path, (".{}", name)))
