"""Whether all ranks call the same with values of the same structure, before any of them waits.

Each rank says in a text what it brings. A digest of it travels with a few numbers in one small
collective; only where digests differ do the texts travel too, and then every rank raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import zip_longest

from ....errors import RankMismatchError
from ..membership import Group
from .wire import gather_bytes, gather_numbers


def agree(
    call: str, said: Sequence[str], group: Group, numbers: Sequence[int] = (), error: str = ""
) -> list[list[int]]:
    """Return the numbers of every rank, once all are known to call the same with the like.

    Args:
        call: the public function that was called.
        said: lines of text, a leaf each, that must be the same on all ranks.
        group: the ranks.
        numbers: what else each rank tells; every call has as many.
        error: why this rank cannot go on, if it cannot; every rank then raises.

    Raises:
        RankMismatchError: some rank differs from rank 0, or cannot go on; the message says which,
            and where.
    """
    text = "\n".join((call, *said)) if not error else f"{call}\n!{error}"
    digest = int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")
    fill = [0] * (4 - len(numbers))
    heard = gather_numbers((digest, len(text.encode()), bool(error), *numbers, *fill), group)
    if all(other[0] == digest and not other[2] for other in heard):
        return [other[3 : 3 + len(numbers)] for other in heard]
    texts = gather_bytes(text.encode(), [other[1] for other in heard], group)
    raise RankMismatchError(_compare([text.decode().split("\n") for text in texts]))


def _compare(texts: Sequence[list[str]]) -> str:
    for rank, (call, *said) in enumerate(texts):
        if said and said[0].startswith("!"):
            return f"rank {rank} in {call}: " + "\n".join([said[0][1:], *said[1:]])
    first = texts[0]
    for rank, other in enumerate(texts):
        if other[0] != first[0]:
            return (
                f"rank {rank} calls {other[0]}, while rank 0 calls {first[0]}; let all ranks call "
                "the same in the same order"
            )
        for mine, theirs in zip_longest(first[1:], other[1:], fillvalue="nothing more"):
            if mine != theirs:
                return (
                    f"{first[0]} needs the same structure on every rank: rank 0 has {mine}, but "
                    f"rank {rank} has {theirs}"
                )
    raise AssertionError("the digests differ, and the texts do not")
