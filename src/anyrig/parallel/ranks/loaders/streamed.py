"""A loader without indices: each rank takes its samples of every batch, or has its own batches."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ....errors import BatchError, MoveError, RankMismatchError, SpreadError, ValueNeededError
from ....transfer.leaves import leaves_of
from ....transfer.tree import ATOM_TYPES
from ...engines.pipeline.over_ranks.contents import forms_of, make_value, read_value
from ...parts.cut import is_dense
from .part import GIVE_EMPTY, count_samples, part_of
from .turns import Turns, part_of_rank

_REMEDY = (
    "If each rank's loader yields samples of its own, as an IterableDataset that divides itself "
    "among the ranks does, pass distribute(…, divided=True); else let it yield the same batches on "
    "every rank, with one seed"
)


class StreamedDivision:
    """Iterates over a loader of global batches, or of this rank's own batches if ``turns.divided``.

    If `compares`, the ranks compare the first batch of each iteration.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        turns: Turns,
        empty: Callable[[], Any] | None,
        compares: bool,
        seed: int = 0,
    ) -> None:
        self.turns = turns
        self.seed = seed  # not used: the loader has an order of its own
        self._given = loader
        self._compares = compares
        self._empty = empty
        self._knows_empty = empty is not None

    def batches(self, epoch: int, skip_batches: int) -> Iterator[Any]:
        """Begin an iteration."""
        given = self._given
        sampler, dataset = getattr(given, "sampler", None), getattr(given, "dataset", None)
        self.turns.begin(epoch, given, sampler, dataset)
        return self._yield_batches(islice(given, skip_batches, None), skip_batches)

    def _yield_batches(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        turns, index = self.turns, start
        if self._compares:
            batches = self._check_first(batches)
        for batch in batches:
            if turns.divided:
                self._learn_empty(batch)
            turns.note(drawn=1)  # first of all, because ranks without a batch wait for this
            if turns.divided:
                yield batch
            else:
                count = count_samples(batch)
                counts = turns.divide(index, count)
                turns.use(counts)
                yield part_of(batch, part_of_rank(counts, turns.part), count)
            index += 1
        turns.note(ended=True)
        while turns.other_rank_has(index - start):
            if not turns.divided:
                raise RankMismatchError(
                    f"the loader of rank {turns.rank} ended after {index} global batches, but "
                    f"another rank's continues. {_REMEDY}"
                )
            yield self._make_empty()
            index += 1

    def _check_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return `batches` after comparing the first batch with rank 0's on every rank."""
        first = list(islice(batches, 1))
        own = fingerprint(first[0]) if first else b"no batch"
        if self.turns.first_of_rank_0(own) != own:
            raise RankMismatchError(
                f"the loader of rank {self.turns.rank} begins with a different batch from rank "
                f"0's, so its samples are not parts of the same global batches. {_REMEDY}. Where "
                "only the values of samples differ, for example by random "
                "augmentation, pass divided=False"
            )
        return chain(first, batches)

    def _learn_empty(self, batch: Any) -> None:
        """Keep a batch without samples, and post it for ranks that never have a batch."""
        board = self.turns.board
        if board is None or self._knows_empty:
            return
        self._knows_empty = True
        try:
            empty = part_of(batch, slice(0, 0), count_samples(batch))
        except (BatchError, MoveError):
            return
        self._empty = lambda: empty
        data = encode_empty(empty)
        if data is not None:
            board.post(f"{self.turns.name}/empty", data)

    def _make_empty(self) -> Any:
        if not self._knows_empty and self.turns.board is not None:
            (data,) = self.turns.board.look([f"{self.turns.name}/empty"])
            if data is not None:
                return decode_empty(data)
        if self._empty is not None:
            return self._empty()
        raise BatchError(
            f"rank {self.turns.rank} has no batch left, while others have, and this loader's "
            f"batches do not show the form of an empty batch. {GIVE_EMPTY}"
        )


def fingerprint(batch: Any) -> bytes:
    """Return a digest that is the same for two batches of equal structure and equal values.

    Of an object that is not a tensor, a number or a string, only the type counts.
    """
    digest = blake2b(digest_size=16)
    for place, leaf in leaves_of(batch):
        for part in (leaf.data, leaf.batch_sizes) if isinstance(leaf, PackedSequence) else (leaf,):
            text, values = _describe(part)
            digest.update(f"{place}\0{type(leaf).__qualname__}\0{text}\0".encode() + values)
    return digest.hexdigest().encode()


def encode_empty(batch: Any) -> bytes | None:
    """Return a batch without samples as JSON; None if the batch has a tensor with elements along a
    dimension, or an object that `read_value` refuses.
    """
    try:
        contents = read_value(batch, "the batch")
        values = [each.item() if not each.dim() else 0 for each in contents.tensors]
        data = json.dumps([contents.text, values]).encode()
    except (SpreadError, TypeError):  # JSON has no complex numbers
        return None
    return None if any(each.dim() and each.numel() for each in contents.tensors) else data


def decode_empty(data: bytes) -> Any:
    """Return the batch that `encode_empty` has encoded, with its tensors on the CPU."""
    text, values = json.loads(data)
    tensors = [
        torch.full(form.shape, value, dtype=form.dtype, device="cpu")
        for form, value in zip(forms_of(text), values, strict=True)
    ]
    return make_value(text, tensors)


def _describe(leaf: Any) -> tuple[str, bytes]:
    if not isinstance(leaf, Tensor):
        return repr(leaf) if type(leaf) in ATOM_TYPES else "", b""
    text = f"{leaf.dtype} {leaf.layout}"
    if not is_dense(leaf):
        return text, b""
    text += str(tuple(leaf.shape))
    try:
        on_host = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
    except ValueNeededError:  # a rehearsal of shapes has no values
        return text, b""
    size = on_host.numel() * on_host.element_size()
    return text, ctypes.string_at(on_host.data_ptr(), size) if size else b""
