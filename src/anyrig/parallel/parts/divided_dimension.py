"""Finding the dimension of an output that has the samples, from the shapes of the parts' outputs.

::

    samples of the parts           5 and 4                  4 and 4
                                   ──────────────────       ──────────────────────────────────
    logits [samples, 10]           [5, 10], [4, 10]         [4, 10], [4, 10]    dimension 0
    an LSTM's h [1, samples, 6]    [1, 5, 6], [1, 4, 6]     [1, 4, 6], [1, 4, 6]
                                       ▲ the sizes differ       ▲ unclear: 4 samples here, or 1
                                         as the samples do        entry a part in dimension 0

If the shapes leave it open, the module is called once more, with one sample more than the first
part. The dimension whose size changes has the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Shape = Sequence[int]


@dataclass(frozen=True)
class Answer:
    """Which dimension of an output has the samples; none if all fields are empty."""

    dim: int | None = None
    candidates: tuple[int, ...] = ()  # dimensions that may have them, if the shapes leave it open
    differing: tuple[int, ...] = ()  # dimensions in which the parts differ without explanation


def read_shapes(shapes: Sequence[Shape], samples: Sequence[int], dim: int) -> Answer:
    """Return what the shapes of the parts' outputs show; all have the same number of dimensions.

    Along `dim`, a part may have any number of entries for each sample, such as the tokens that a
    mask chose; along any other dimension it has one entry for each sample.
    """
    along = along_dimension(dim, shapes[0])
    sizes = list(zip(*shapes, strict=True))
    differing = [i for i, in_parts in enumerate(sizes) if len(set(in_parts)) > 1]
    following = [i for i, in_parts in enumerate(sizes) if in_parts == tuple(samples)]
    if len(differing) == 1 and differing == following:
        return Answer(differing[0])
    elsewhere = tuple(i for i in differing if i != along)
    if elsewhere:
        return Answer(differing=elsewhere)
    single = all(size == 1 for size in shapes[0])
    if not following:
        if differing or (along is not None and not any(sizes[along])):
            return Answer(along)
        if single:
            return Answer()
    if following == [along] and not differing and not single:
        return Answer(along)
    candidates = {*following, *([] if along is None else [along])}
    return Answer(candidates=tuple(sorted(candidates)), differing=tuple(differing))


def read_change(answer: Answer, first: Shape, samples: int, more: Shape, dim: int) -> Answer:
    """Return the candidates that changed from `first` (`samples` samples) to `more` (one more)."""
    along = along_dimension(dim, first)
    grown = [i for i in answer.candidates if more[i] != first[i]]
    changed = tuple(i for i in grown if i == along or more[i] == samples + 1)
    if not changed and answer.differing:  # a mask chose no entry of the added sample
        changed = answer.differing
    return Answer(*changed) if len(changed) == 1 else Answer(candidates=changed)


def along_dimension(dim: int, shape: Shape) -> int | None:
    """Return `dim` counted from the first dimension; None if `shape` does not have it."""
    return dim % len(shape) if -len(shape) <= dim < len(shape) else None
