"""The tensors of a module, packed into few large copies for the other devices.

::

    lead        b1 ┐  b2 ┐  w1 ┐  w2 ┐    one storage each; small tensors are packed for the copy,
                   └─────┴pack │     │    large tensors are copied directly
    cuda:1      [ b1  | b2 |  w1 |  w2 ]  one flat tensor for each bucket, kept with the replicas,
    cuda:2      [ b1  | b2 |  w1 |  w2 ]  whose tensors are views of it

Tensors that share a storage on the lead share one on the other devices too, with the same layout:
cuDNN takes the weights of a recurrent network in one piece.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

# As in DistributedDataParallel: large enough to use the link, small enough to overlap with the
# computation. The first bucket is small, since the first layer waits for it, and its gradients are
# the last to be sent; the limits of later buckets grow by this factor.
BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
BUCKET_GROWTH = 4

# Larger tensors are not packed. Packing takes time and memory on the lead, and saves only a launch:
# in the time of a launch, the fastest links carry this much.
_LARGE_BYTES = 2**20

# The alignment that the allocator gives, for cuBLAS and vectorized kernels.
_ALIGNMENT_BYTES = 512


@dataclass(eq=False)
class Slot:
    """One tensor of the module."""

    tensor: torch.Tensor  # the caller's, on the lead
    # Weak: a reference cycle with the bucket would delay freeing the memory of a dropped model.
    _bucket: weakref.ref[Bucket] = field(init=False, repr=False)
    position: int = field(init=False)  # among the bucket's slots
    changed: int = 0  # the bucket's `stamp` at the tensor's last known change
    seen: tuple[int | None, int] = (None, 0)  # version and address at the last look

    @property
    def bucket(self) -> Bucket:
        """The bucket that holds the copies."""
        bucket = self._bucket()
        assert bucket is not None, "a slot outlived its bucket"
        return bucket


def form_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return the properties of a tensor on which its place in a bucket depends."""
    storage_bytes = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, storage_bytes


class _Block:
    """A contiguous part of a storage on the lead, and its place in a bucket, in elements."""

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.start = 0
        self.length = (_hull(slots) or (0, slots[0].tensor.numel()))[1]
        self.nbytes = self.length * slots[0].tensor.element_size()
        self.form = self.form_now()

    def form_now(self) -> tuple[list[int] | None, object]:
        """Return the tensors' offsets, None for a single tensor, and what else must not change."""
        hull = _hull(self.slots)
        offsets = hull and [int(slot.tensor.storage_offset()) - hull[0] for slot in self.slots]
        storages = {slot.tensor.untyped_storage()._cdata for slot in self.slots}
        return offsets, (len(storages), [form_of(slot.tensor) for slot in self.slots])

    def source(self) -> torch.Tensor:
        hull, tensor = _hull(self.slots), self.slots[0].tensor.detach()
        return tensor if hull is None else tensor.as_strided((self.length,), (1,), hull[0])


class Bucket:
    """Tensors of one dtype, copied together to the other devices."""

    def __init__(self, blocks: Sequence[_Block], devices: Sequence[torch.device]) -> None:
        self._blocks = sorted(blocks, key=lambda block: block.nbytes >= _LARGE_BYTES)
        small = sum(block.nbytes < _LARGE_BYTES for block in blocks)
        self._packed = small if small > 1 else 0  # the number of packed blocks, the first ones
        self.slots = [slot for block in self._blocks for slot in block.slots]  # large ones last
        for position, slot in enumerate(self.slots):
            slot._bucket, slot.position = weakref.ref(self), position
        self.dtype = self.slots[0].tensor.dtype
        self.length, grain = 0, max(1, _ALIGNMENT_BYTES // self.dtype.itemsize)
        for block in self._blocks:
            block.start = -(-self.length // grain) * grain
            self.length = block.start + block.length
        last = self._blocks[self._packed - 1]
        self._packed_length = last.start + last.length
        self.devices = tuple(devices)
        self.stamp = 0  # counts the changes of the lead's values
        self.suspect = False  # whether they may have changed without a new version
        # For each device: the stamp of its values, its tensors, and the event of their arrival.
        self.held = [0] * len(devices)
        self.copies: list[list[torch.Tensor]] = [[] for _ in devices]
        self.ready = [torch.Event(device) for device in devices]
        self._flats: list[torch.Tensor | None] = [None] * len(devices)
        self._versions: list[list[int]] = [[] for _ in devices]  # of the copies at their arrival
        self._sources: list[torch.Tensor] = []

    @property
    def learns(self) -> bool:
        """Whether one of the tensors requires gradients."""
        return any(slot.tensor.requires_grad for slot in self.slots)

    def look(self) -> bool | None:
        """Return whether versions or addresses of the lead's tensors changed since the last look.

        Return None if forms or shared storages have changed, so that new buckets are needed.
        """
        stamp = self.stamp + 1
        changed = moved = self.stamp == 0
        for slot in self.slots:
            # Inference tensors have no version: assume a change.
            version = None if slot.tensor.is_inference() else slot.tensor._version
            seen = (version, slot.tensor.data_ptr())
            if seen != slot.seen or version is None:
                moved = moved or seen[1] != slot.seen[1]
                slot.seen, slot.changed, changed = seen, stamp, True
        if moved:
            if any(block.form != block.form_now() for block in self._blocks):
                for slot in self.slots:
                    slot.seen = (None, 0)  # the next look returns None, too
                return None
            self._sources = [block.source() for block in self._blocks]
        if changed:
            self.stamp = stamp
        return changed

    def flat(self, device: int) -> torch.Tensor:
        """Return the tensor that holds all copies on a device; made at the first use."""
        flat = self._flats[device]
        if flat is None:
            flat = torch.empty(self.length, dtype=self.dtype, device=self.devices[device])
            self._flats[device] = flat
            # .data gives each view a version counter of its own.
            self.copies[device] = [part.data for part in self.parts(flat)]
        return flat

    def differs(self, device: int) -> bool:
        """Return whether a device does not have the lead's values, or has overwritten them."""
        return self.held[device] != self.stamp or bool(self._written(device))

    def _written(self, device: int) -> list[torch.Tensor]:
        pairs = zip(self.copies[device], self._versions[device], strict=False)
        return [copy for copy, version in pairs if copy._version != version]

    def note_arrival(self, device: int) -> None:
        """Record that a device has the lead's values; graphs that saved earlier ones will raise."""
        copies, held = self.copies[device], self.held[device]
        changed = [copies[slot.position] for slot in self.slots if slot.changed > held]
        torch.autograd.graph.increment_version([*changed, *self._written(device)])
        self._versions[device] = [copy._version for copy in copies]
        self.held[device] = self.stamp

    def parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the views of a flat tensor that correspond to `slots`."""
        parts = []
        for block in self._blocks:
            offsets, _ = block.form
            for slot, offset in zip(block.slots, offsets or [0], strict=True):
                shape, start = slot.tensor.shape, flat.storage_offset() + block.start + offset
                if offsets is None:
                    parts.append(_stretch(block, flat).view(shape))
                else:
                    parts.append(flat.as_strided(shape, slot.tensor.stride(), start))
        return parts

    def pack(self, tensors: Sequence[torch.Tensor | None], device: torch.device) -> torch.Tensor:
        """Return tensors like those of `slots` in one flat tensor, with zeros for None."""
        first = tensors[0] if len(tensors) == 1 else None  # not copied if it has the layout
        if first is not None and first.is_contiguous():
            layout = (self.dtype, self.slots[0].tensor.stride(), self.length)
            if (first.dtype, first.stride(), first.numel()) == layout:
                return first.view(-1)
        make = torch.zeros if any(tensor is None for tensor in tensors) else torch.empty
        flat = make(self.length, dtype=self.dtype, device=device)
        there = [tensor for tensor in tensors if tensor is not None]
        places = zip(self.parts(flat), tensors, strict=True)
        _copy_each([part for part, tensor in places if tensor is not None], there)
        return flat

    def pieces(self, *, copied: bool = False) -> list[torch.Tensor]:
        """Return the lead's values as flat tensors: small ones packed into one, then large ones.

        With `copied`, large ones are copies, too, so that the lead may write its own meanwhile.
        """
        whole = [source.reshape(-1) for source in self._sources]
        small, large = whole[: self._packed], whole[self._packed :]
        if copied:
            large = [source.clone() for source in large]
        if not small:
            return large
        packed = torch.empty(self._packed_length, dtype=self.dtype, device=small[0].device)
        _copy_each([_stretch(block, packed) for block in self._blocks[: self._packed]], small)
        return [packed, *large]

    def pieces_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of `flat` that correspond to `pieces`."""
        packed = [flat.narrow(0, 0, self._packed_length)] if self._packed else []
        return packed + [_stretch(block, flat) for block in self._blocks[self._packed :]]


def in_cuts(flat: torch.Tensor, hops: int) -> Sequence[torch.Tensor]:
    """Return the parts in which a flat tensor passes along a chain of `hops` copies."""
    if hops == 1 or flat.nbytes <= BUCKET_BYTES:
        return [flat]
    cuts: Sequence[torch.Tensor] = torch.split(flat, BUCKET_BYTES // flat.element_size())
    return cuts


def make_buckets(
    slots: Iterable[Slot],
    devices: Sequence[torch.device],
    *,
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> list[Bucket]:
    """Return buckets of up to `bucket_bytes` that hold `slots`, in order.

    Frozen tensors rarely change, so they have buckets of their own. So does each larger tensor.
    """
    full: list[list[_Block]] = []
    # For each kind, the bucket that is being filled and the bytes left in it.
    filling: dict[tuple[torch.dtype, bool], tuple[list[_Block], int]] = {}
    limit = first_bucket_bytes
    for block in _blocks_of(slots):
        tensor = block.slots[0].tensor
        key = (tensor.dtype, tensor.requires_grad)
        bucket, room = filling.get(key, ([], 0))
        if not bucket or block.nbytes > room:
            bucket, room = [], limit
            full.append(bucket)
            limit = min(limit * BUCKET_GROWTH, bucket_bytes)
        bucket.append(block)
        filling[key] = bucket, room - block.nbytes
    return [Bucket(blocks, devices) for blocks in full]


def _blocks_of(slots: Iterable[Slot]) -> list[_Block]:
    """Group the slots that share a storage, unless they cover less than half of their range."""
    groups: dict[object, list[Slot]] = {}
    for slot in slots:
        tensor = slot.tensor
        groups.setdefault((tensor.untyped_storage()._cdata, tensor.dtype), []).append(slot)
    return [
        _Block(members)
        for group in groups.values()
        for members in ([group] if _hull(group) else [[slot] for slot in group])
    ]


def _hull(slots: Sequence[Slot]) -> tuple[int, int] | None:
    """Return offset and length of the slots' range, in elements; None if less than half is used."""
    begins, ends = [], []
    for tensor in (slot.tensor for slot in slots):
        begins.append(int(tensor.storage_offset()))
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in steps) if tensor.numel() else 0
        ends.append(begins[-1] + extent)
    length = max(ends) - min(begins)
    covered = sum(slot.tensor.numel() for slot in slots)
    return (min(begins), length) if length <= 2 * covered else None


def _stretch(block: _Block, flat: torch.Tensor) -> torch.Tensor:
    return flat.narrow(0, block.start, block.length)


def _copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy many tensors, in one launch if the device supports that."""
    if targets[0].dtype.itemsize == 1:
        targets = [target.view(torch.uint8) for target in targets]
        sources = [source.view(torch.uint8) for source in sources]
    # Private, but every optimizer of torch.optim uses it.
    torch._foreach_copy_(list(targets), list(sources), non_blocking=True)
