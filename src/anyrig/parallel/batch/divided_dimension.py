"""Which dimension of an output has the samples, told from what the parts of a batch returned.

::

    samples of the parts           5 and 4                  4 and 4
                                   ──────────────────       ──────────────────────────────────
    logits [samples, 10]           [5, 10], [4, 10]         [4, 10], [4, 10]    dimension 0
    an LSTM's h [1, samples, 6]    [1, 5, 6], [1, 4, 6]     [1, 4, 6], [1, 4, 6]
                                       ▲ the sizes differ       ▲ 1, or are there four times 1
                                         like the samples         along dimension 0? Not clear

Where shapes do not decide, the module is called once more, with one sample more than the first part
had, and the dimension whose size changes is the one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Shape = Sequence[int]


@dataclass(frozen=True)
class Answer:
    """Where the samples are in an output. If all fields are empty, in no dimension.

    Attributes:
        dim: the dimension that has them.
        candidates: where they could be, if that is not clear.
        differing: dimensions in which the parts differ, unless `dim` says all.
    """

    dim: int | None = None
    candidates: tuple[int, ...] = ()
    differing: tuple[int, ...] = ()


def read_shapes(shapes: Sequence[Shape], samples: Sequence[int], dim: int) -> Answer:
    """Return what the shapes of an output's parts say.

    Along `dim` a part may have any number of entries for each sample, such as the tokens that a
    mask chose; along another dimension it has one for each.

    The parts are at least two, and have equally many dimensions, at least one.
    """
    along = along_dimension(dim, shapes[0])
    sizes = list(zip(*shapes, strict=True))
    differing = [position for position, of_parts in enumerate(sizes) if len(set(of_parts)) > 1]
    follows = [position for position, of_parts in enumerate(sizes) if of_parts == tuple(samples)]
    if len(differing) == 1 and differing == follows:
        return Answer(differing[0])
    elsewhere = tuple(position for position in differing if position != along)
    if elsewhere:
        return Answer(differing=elsewhere)
    single = all(size == 1 for size in shapes[0])
    if not follows:
        if differing or (along is not None and not any(sizes[along])):
            return Answer(along)
        if single:
            return Answer()
    if follows == [along] and not differing and not single:
        return Answer(along)
    candidates = {*follows, *([] if along is None else [along])}
    return Answer(candidates=tuple(sorted(candidates)), differing=tuple(differing))


def read_change(answer: Answer, first: Shape, samples: int, of_one_more: Shape, dim: int) -> Answer:
    """Return what a call with one sample more says where the parts left candidates.

    The first part has the shape `first` and so many samples; of one more came `of_one_more`.
    """
    along = along_dimension(dim, first)
    changed = tuple(
        position
        for position in answer.candidates
        if of_one_more[position] != first[position]
        and (position == along or of_one_more[position] == samples + 1)
    )
    if not changed and answer.differing:  # the sample had no entries; the parts show the rest
        changed = answer.differing
    return Answer(*changed) if len(changed) == 1 else Answer(candidates=changed)


def along_dimension(dim: int, shape: Shape) -> int | None:
    """Return which dimension of a shape `dim` is; None if it has no such one."""
    return dim % len(shape) if -len(shape) <= dim < len(shape) else None
