"""What is known of a call of a module, and what another call finds out: see `divided_dimension`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...errors import BatchError
from ...transfer.tree import Path, format_path, walk_leaves
from .divided_dimension import Answer, along_dimension, read_change, read_shapes
from .joining import format_shapes

_MOST_REMEMBERED = 1024


class Call:
    """One call of a module whose batch was divided into parts along `dim`.

    Args:
        samples: how many each part had.
        dim: along which dimension.
        like: returns a key that is equal for calls whose outputs are of one form.
        once_more: returns what the module returns for so many samples from the batch's beginning.
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
        shapes = [tuple(tensor.shape) for tensor in tensors]
        answer = read_shapes(shapes, self.samples, self.dim)
        # A mask may have chosen one entry of each part: then two parts together have two. A number
        # for the whole part, such as a mean, stays one.
        single = answer == Answer() and tensors[0].numel() == 1 and len(tensors) > 1
        if not answer.candidates and not single:
            return answer
        place = (self._like_key, path, len(shapes[0]), single)
        found = self._known.get(place)
        if single:
            return found or self._remember(place, self._ask_for_two(tensors, path))
        if found is None or (found.dim is not None and found.dim not in answer.candidates):
            shape = self._ask(tensors, path, self.samples[0] + 1)
            found = read_change(answer, shapes[0], self.samples[0], shape, self.dim)
            self._remember(place, found)
        if found.dim is None:
            return found
        # Lengths may differ as well: of [4, 3, 8] and [5, 3, 8], dimension 1 can have the samples.
        differing = tuple(
            i
            for i, sizes in enumerate(zip(*shapes, strict=True))
            if i != found.dim and len(set(sizes)) > 1
        )
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

    def _ask_for_two(self, tensors: Sequence[Tensor], path: Path) -> Answer:
        """Return where two parts together have other than one entry."""
        shape = self._ask(tensors, path, self.samples[0] + self.samples[1])
        changed = tuple(i for i, size in enumerate(shape) if size != 1)
        along = along_dimension(self.dim, shape)
        return Answer(along) if changed == (along,) else Answer(candidates=changed)

    def _ask(self, tensors: Sequence[Tensor], path: Path, samples: int) -> tuple[int, ...]:
        """Return the shape that the output has for so many samples."""
        what = f"the shapes {format_shapes(tensors)}"
        shape = self._find(path, what, samples)
        if shape is None or len(shape) != tensors[0].dim():
            raise self._not_clear(path, what, samples)
        return shape

    def _remember(self, place: Hashable, answer: Answer) -> Answer:
        if len(self._known) >= _MOST_REMEMBERED:  # each call was unlike all others
            self._known.clear()
        if not answer.candidates:
            self._known[place] = answer
        return answer

    @cached_property
    def _like_key(self) -> Hashable:
        return self._like()

    def _find(self, path: Path, what: str, samples: int) -> tuple[int, ...] | None:
        """Return the shape, or the numbers, at `path` of what the module returns for `samples`."""
        try:
            if samples not in self._returned:
                self._returned[samples] = dict(_shapes_in(self._once_more(samples)))
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


def _shapes_in(value: Any) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield the shapes of tensors, and whole numbers, with their places."""
    for path, leaf in walk_leaves(value, (torch.Size,)):
        if isinstance(leaf, Tensor):
            yield path, tuple(leaf.shape)
        elif isinstance(leaf, torch.Size):
            yield path, tuple(leaf)
        elif type(leaf) is int:
            yield path, (leaf,)
