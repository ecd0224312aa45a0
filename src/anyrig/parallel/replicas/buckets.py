"""The tensors of a module, packed into few large copies for the other devices.

::

    lead        b1 ┐  b2 ┐  w1 ┐  w2 ┐    one storage each, wherever the caller's module has them
                   └─────┴pack │     │    large ones are copied as they are
    cuda:1      [ b1  | b2 |  w1 |  w2 ]  one flat tensor a bucket, which lives as long as the
    cuda:2      [ b1  | b2 |  w1 |  w2 ]  replicas; their tensors are views of it

Tensors that share a storage on the lead lie in the same way on the others, so that the weights of
a recurrent network that cuDNN wants in one piece stay in one piece.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

# As in DistributedDataParallel: large enough to use the link, small enough that one travels while
# the next is computed. The first one is small, since the first layer waits for it, and since its
# gradients are the last to travel; those after it grow by this factor.
BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
BUCKET_GROWTH = 4

# From this size on a tensor is copied as it is. Packing takes the lead's time and memory, and saves
# a launch, in which this much travels by the fastest links.
_LARGE_BYTES = 2**20

# What cuBLAS and vectorized kernels want of an address, and what the allocator gives.
_ALIGNMENT_BYTES = 512


@dataclass(eq=False)
class Slot:
    """One tensor of the module, in however many places the module has it.

    Attributes:
        tensor: the caller's, on the lead.
        position: which of its bucket's slots it is.
        changed: the bucket's `stamp` when the tensor was last seen to have changed.
        seen: its version and address at the last look.
    """

    tensor: torch.Tensor
    # Weak, for the bucket has its slots: as a circle they would keep the memory of a dropped model
    # until Python's cycle collector comes by.
    _bucket: weakref.ref[Bucket] = field(init=False, repr=False)
    position: int = field(init=False)
    changed: int = 0
    seen: tuple[int | None, int] = (None, 0)

    @property
    def bucket(self) -> Bucket:
        """Where the copies lie."""
        bucket = self._bucket()
        assert bucket is not None, "a slot outlived its bucket"
        return bucket


def form_of(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what the place of a tensor in its bucket is made for."""
    storage_bytes = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, storage_bytes


class _Block:
    """A stretch of one storage on the lead, which lies at `start` in the bucket, in elements."""

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.start = 0
        hull = _hull(slots)
        self.length = hull[1] if hull else slots[0].tensor.numel()
        self.nbytes = self.length * slots[0].tensor.element_size()
        self.form = self.form_now()

    def form_now(self) -> tuple[list[int] | None, object]:
        """Return where each tensor begins, None if it is copied alone; and what else must stay."""
        hull = _hull(self.slots)
        offsets = hull and [int(slot.tensor.storage_offset()) - hull[0] for slot in self.slots]
        storages = {slot.tensor.untyped_storage()._cdata for slot in self.slots}
        return offsets, (len(storages), [form_of(slot.tensor) for slot in self.slots])

    def source(self) -> torch.Tensor:
        """Return a view of the lead's values."""
        hull, tensor = _hull(self.slots), self.slots[0].tensor.detach()
        return tensor if hull is None else tensor.as_strided((self.length,), (1,), hull[0])


class Bucket:
    """Some tensors of one dtype, copied to another device in one piece.

    Attributes:
        slots: in the module's order, those of large tensors last.
        stamp: counts the changes of what the lead has.
        held: for each device but the lead, the stamp of what it has; 0 is nothing yet.
        copies: for each device but the lead, its tensors in the order of `slots`.
        ready: for each device but the lead, recorded when what it was sent has arrived.
        suspect: whether the lead's values may have changed without a new version since the last
            look.
    """

    def __init__(self, blocks: Sequence[_Block], devices: Sequence[torch.device]) -> None:
        self._blocks = sorted(blocks, key=lambda block: block.nbytes >= _LARGE_BYTES)
        small = sum(block.nbytes < _LARGE_BYTES for block in blocks)
        self._packed = small if small > 1 else 0  # how many blocks are, the first ones
        self.slots = [slot for block in self._blocks for slot in block.slots]
        for position, slot in enumerate(self.slots):
            slot._bucket, slot.position = weakref.ref(self), position
        self.dtype = self.slots[0].tensor.dtype
        self.length = _place(self._blocks, self.dtype)
        self.devices = tuple(devices)
        self.stamp = 0
        self.suspect = False
        self.held = [0] * len(devices)
        self.ready = [torch.Event(device) for device in devices]
        self._flats: list[torch.Tensor | None] = [None] * len(devices)
        self.copies: list[list[torch.Tensor]] = [[] for _ in devices]
        self._versions: list[list[int]] = [[] for _ in devices]  # of copies, when they arrived
        self._sources: list[torch.Tensor] = []

    @property
    def learns(self) -> bool:
        """Whether a tensor in it requires gradients."""
        return any(slot.tensor.requires_grad for slot in self.slots)

    def look(self) -> bool | None:
        """Say whether the lead's tensors have changed since the last look, as their versions tell.

        None: they no longer have the form, or share storage as, the bucket was made for.
        """
        stamp = self.stamp + 1
        changed = moved = self.stamp == 0
        for slot in self.slots:
            tensor = slot.tensor
            # Tensors made in inference mode have no version: they may always have changed.
            version = None if tensor.is_inference() else tensor._version
            seen = (version, tensor.data_ptr())
            if seen != slot.seen or version is None:
                moved = moved or seen[1] != slot.seen[1]
                slot.seen, slot.changed, changed = seen, stamp, True
        if moved:
            if any(block.form != block.form_now() for block in self._blocks):
                for slot in self.slots:
                    slot.seen = (None, 0)  # so that the next look sees it too
                return None
            self._sources = [block.source() for block in self._blocks]
        if changed:
            self.stamp = stamp
        return changed

    def flat(self, device: int) -> torch.Tensor:
        """Return the one tensor that holds all of them on a device; made at the first use."""
        flat = self._flats[device]
        if flat is None:
            flat = torch.empty(self.length, dtype=self.dtype, device=self.devices[device])
            self._flats[device] = flat
            # .data: a version counter each, else a change of one would count for all.
            self.copies[device] = [part.data for part in self.parts(flat)]
        return flat

    def differs(self, device: int) -> bool:
        """Say whether a device lacks the lead's values, or has written its copies of them."""
        return self.held[device] != self.stamp or bool(self._written(device))

    def _written(self, device: int) -> list[torch.Tensor]:
        pairs = zip(self.copies[device], self._versions[device], strict=False)
        return [copy for copy, version in pairs if copy._version != version]

    def note_arrival(self, device: int) -> None:
        """Note that a device holds the lead's values, and tell graphs that saved other ones."""
        copies, held = self.copies[device], self.held[device]
        changed = [copies[slot.position] for slot in self.slots if slot.changed > held]
        torch.autograd.graph.increment_version([*changed, *self._written(device)])
        self._versions[device] = [copy._version for copy in copies]
        self.held[device] = self.stamp

    def parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the views of such a tensor that are the tensors of `slots`."""
        parts = []
        for block in self._blocks:
            offsets, _ = block.form
            for slot, offset in zip(block.slots, offsets or [0], strict=True):
                shape, start = slot.tensor.shape, flat.storage_offset() + block.start + offset
                if offsets is None:
                    parts.append(flat.narrow(0, block.start, block.length).view(shape))
                else:
                    parts.append(flat.as_strided(shape, slot.tensor.stride(), start))
        return parts

    def pack(self, tensors: Sequence[torch.Tensor | None], device: torch.device) -> torch.Tensor:
        """Return tensors like those of `slots` in one flat tensor, zero where there is none.

        A single one that lies like that already is not copied.
        """
        first = tensors[0]
        if (
            len(tensors) == 1
            and first is not None
            and first.is_contiguous()
            and first.dtype is self.dtype
            and first.stride() == self.slots[0].tensor.stride()
            and first.numel() == self.length
        ):
            return first.view(-1)
        make = torch.zeros if any(tensor is None for tensor in tensors) else torch.empty
        flat = make(self.length, dtype=self.dtype, device=device)
        there = [tensor for tensor in tensors if tensor is not None]
        places = zip(self.parts(flat), tensors, strict=True)
        _copy_each([part for part, tensor in places if tensor is not None], there)
        return flat

    def pieces(self, *, apart: bool = False) -> list[torch.Tensor]:
        """Return the lead's values in tensors of one dimension: large ones as they are, or copied
        if `apart`, so that the lead's may change meanwhile; small ones packed into one.
        """
        whole = [source.reshape(-1) for source in self._sources]
        small, large = whole[: self._packed], whole[self._packed :]
        if apart:
            large = [source.clone() for source in large]
        if not small:
            return large
        packed = torch.empty(self._packed_length, dtype=self.dtype, device=small[0].device)
        _copy_each([_stretch(block, packed) for block in self._blocks[: self._packed]], small)
        return [packed, *large]

    def pieces_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the same parts of a tensor that holds all of them."""
        packed = [flat.narrow(0, 0, self._packed_length)] if self._packed else []
        return packed + [_stretch(block, flat) for block in self._blocks[self._packed :]]

    @property
    def _packed_length(self) -> int:
        last = self._blocks[self._packed - 1]
        return last.start + last.length


def in_cuts(flat: torch.Tensor, hops: int) -> Sequence[torch.Tensor]:
    """Return a flat tensor in parts that pass along a chain of devices one behind the other.

    A large one, of which all but the first device would else wait for the whole, is cut.
    """
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
    """Return buckets of up to `bucket_bytes` that hold `slots`, in their order.

    What learns and what does not lie apart, since the second rarely changes. A tensor that is
    larger has a bucket of its own.
    """
    full: list[list[_Block]] = []
    # For each kind, the bucket that is being filled and how many bytes there is room for.
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
    """Group the slots that share a storage, unless they cover little of what lies between them."""
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
    """Return offset and length of the stretch of storage that slots cover, in elements; None if
    they leave most of it out.
    """
    begin = min(int(slot.tensor.storage_offset()) for slot in slots)
    end = max(int(slot.tensor.storage_offset()) + _extent(slot.tensor) for slot in slots)
    covered = sum(slot.tensor.numel() for slot in slots)
    return (begin, end - begin) if end - begin <= 2 * covered else None


def _extent(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def _place(blocks: Sequence[_Block], dtype: torch.dtype) -> int:
    """Give each block its place, aligned, and return the length of all."""
    grain = max(1, _ALIGNMENT_BYTES // dtype.itemsize)
    end = 0
    for block in blocks:
        block.start = -(-end // grain) * grain
        end = block.start + block.length
    return end


def _stretch(block: _Block, flat: torch.Tensor) -> torch.Tensor:
    return flat.narrow(0, block.start, block.length)


def _copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy many tensors in one launch where the device can."""
    if targets[0].dtype.itemsize == 1:
        targets = [target.view(torch.uint8) for target in targets]
        sources = [source.view(torch.uint8) for source in sources]
    # Private by name, but what every optimizer of torch.optim is made of.
    torch._foreach_copy_(list(targets), list(sources), non_blocking=True)
