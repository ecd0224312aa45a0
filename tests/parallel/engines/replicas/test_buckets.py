"""Packing tensors into few copies: places, changes and shared memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyrig.parallel.engines.replicas.buckets import Bucket, Slot, make_buckets

pytestmark = pytest.mark.gpus(2)

OTHER = torch.device("cuda:1")


def on_lead(*shape: int, **options: object) -> Tensor:
    return torch.randn(*shape, device="cuda:0", **options)


def buckets_of(*tensors: Tensor, **limits: int) -> list[Bucket]:
    return make_buckets([Slot(tensor) for tensor in tensors], [OTHER], **limits)


def send(bucket: Bucket) -> list[Tensor]:
    bucket.look()
    with torch.no_grad():
        for place, piece in zip(bucket.pieces_of(bucket.flat(0)), bucket.pieces(), strict=True):
            place.copy_(piece)
    return bucket.copies[0]


def test_copies_have_values_shapes_strides_and_versions_of_their_own() -> None:
    tensors = [
        on_lead(3, 4),
        on_lead(2, 3, 4, 5).to(memory_format=torch.channels_last),
        on_lead(()),
        on_lead(0, 7),
        on_lead(6, 5).t(),
    ]
    (bucket,) = buckets_of(*tensors)
    copies = send(bucket)
    for copy, tensor in zip(copies, tensors, strict=True):
        assert copy.device == OTHER
        assert (copy.shape, copy.stride()) == (tensor.shape, tensor.stride())
        torch.testing.assert_close(copy.cpu(), tensor.cpu(), rtol=0, atol=0)
    copies[0].add_(1)
    assert [copy._version for copy in copies] == [1, 0, 0, 0, 0]


def test_every_tensor_is_aligned() -> None:
    (bucket,) = buckets_of(*(on_lead(size) for size in (1, 3, 130, 7)))
    begins = [copy.storage_offset() * copy.element_size() for copy in send(bucket)]
    assert all(begin % 512 == 0 for begin in begins)


def test_tensors_that_share_memory_share_it_there() -> None:
    # cuDNN has the weights of a recurrent network in one piece of memory like this.
    whole = on_lead(20)
    parts = [whole[:6].view(2, 3), whole[6:14], whole[14:].view(3, 2), whole[2:8]]
    (bucket,) = buckets_of(*parts)
    copies = send(bucket)
    assert len({copy.untyped_storage().data_ptr() for copy in copies}) == 1
    starts = [copy.data_ptr() - copies[0].data_ptr() for copy in copies]
    assert starts == [part.data_ptr() - parts[0].data_ptr() for part in parts]


def test_a_small_part_of_a_large_storage_is_copied_alone() -> None:
    part = on_lead(1000, 10)[:, 3]
    (bucket,) = buckets_of(part)
    assert bucket.length == 1000
    (copy,) = send(bucket)
    torch.testing.assert_close(copy.cpu(), part.cpu(), rtol=0, atol=0)


def test_one_tensor_is_not_packed() -> None:
    tensor = on_lead(100)
    (bucket,) = buckets_of(tensor)
    bucket.look()
    assert [piece.data_ptr() for piece in bucket.pieces()] == [tensor.data_ptr()]


def test_large_tensors_are_not_packed_and_lie_behind_the_small_ones() -> None:
    small, large, other = on_lead(100), on_lead(600, 600), on_lead(7)
    (bucket,) = buckets_of(small, large, other, first_bucket_bytes=2**22)
    assert [slot.tensor for slot in bucket.slots] == [small, other, large]
    copies = send(bucket)
    packed, alone = bucket.pieces()
    assert packed.numel() == 128 + 7  # aligned
    assert alone.data_ptr() == large.data_ptr()
    for copy, tensor in zip(copies, (small, other, large), strict=True):
        torch.testing.assert_close(copy.cpu(), tensor.cpu(), rtol=0, atol=0)


def test_apart_from_the_lead_is_all_that_is_sent() -> None:
    small, large, other = on_lead(100), on_lead(600, 600), on_lead(7)
    for tensors in ([small, large, other], [small], [large]):
        (bucket,) = buckets_of(*tensors, first_bucket_bytes=2**22)
        send(bucket)
        pieces = bucket.pieces(copied=True)
        memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        assert not memory & {piece.untyped_storage().data_ptr() for piece in pieces}
        for place, piece in zip(bucket.pieces_of(bucket.flat(0)), pieces, strict=True):
            assert torch.equal(place.cpu(), piece.cpu())


def test_buckets_are_filled_in_order_the_first_ones_smaller() -> None:
    tensors = [on_lead(256) for _ in range(17)]
    found = buckets_of(*tensors, bucket_bytes=6 * 1024, first_bucket_bytes=1024)
    assert [len(bucket.slots) for bucket in found] == [1, 4, 6, 6]
    assert [slot.tensor for bucket in found for slot in bucket.slots] == tensors


def test_dtypes_and_what_does_not_learn_lie_apart() -> None:
    learning = on_lead(4, requires_grad=True)
    found = buckets_of(learning, on_lead(4), on_lead(4).half(), on_lead(4, requires_grad=True))
    assert sorted(len(bucket.slots) for bucket in found) == [1, 1, 2]


@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e4m3fn, torch.int64, torch.complex128])
def test_every_dtype(dtype: torch.dtype) -> None:
    tensors = [on_lead(3).to(dtype), on_lead(5).to(dtype)]
    for copy, tensor in zip(send(buckets_of(*tensors)[0]), tensors, strict=True):
        assert torch.equal(copy.cpu().view(torch.uint8), tensor.cpu().view(torch.uint8))


def test_looking_tells_what_changed() -> None:
    tensors = [on_lead(3), on_lead(4)]
    (bucket,) = buckets_of(*tensors)
    assert bucket.look() is True  # nothing was sent yet
    assert bucket.look() is False
    tensors[1].add_(1)
    assert bucket.look() is True
    assert [slot.changed for slot in bucket.slots] == [1, 2]
    tensors[0].data = on_lead(3)
    assert bucket.look() is True
    torch.testing.assert_close(send(bucket)[0].cpu(), tensors[0].cpu())


@pytest.mark.parametrize(
    "change",
    [
        lambda t: setattr(t[0], "data", t[0].data.double()),
        lambda t: setattr(t[0], "data", on_lead(5)),
        lambda t: setattr(t[0], "data", t[0].data.cpu()),
        lambda t: setattr(t[0], "data", on_lead(9)[:4]),
    ],
    ids=["dtype", "shape", "device", "shared"],
)
def test_looking_tells_what_no_longer_fits(change: object) -> None:
    tensors = [on_lead(4), on_lead(4)]
    (bucket,) = buckets_of(*tensors)
    bucket.look()
    assert callable(change)
    change(tensors)
    assert bucket.look() is None


@pytest.mark.parametrize(("numbers", "is_large"), [(2**18 - 1, False), (2**18, True)])
def test_from_one_mebibyte_on_a_tensor_is_copied_as_it_is(numbers: int, is_large: bool) -> None:
    tensors = [on_lead(3), on_lead(5), on_lead(numbers)]
    (bucket,) = buckets_of(*tensors, first_bucket_bytes=2**22)
    send(bucket)
    assert len(bucket.pieces()) == (2 if is_large else 1)
    assert (bucket.pieces()[-1].data_ptr() == tensors[2].data_ptr()) == is_large


@pytest.mark.parametrize(("length", "together"), [(20, True), (21, False)])
def test_parts_that_cover_half_of_what_lies_between_them_stay_together(
    length: int, together: bool
) -> None:
    whole = on_lead(length)
    parts = [whole[:5], whole[length - 5 :]]
    (bucket,) = buckets_of(*parts)
    copies = send(bucket)
    for copy, part in zip(copies, parts, strict=True):
        assert torch.equal(copy.cpu(), part.cpu())
    distance = copies[1].storage_offset() - copies[0].storage_offset()
    assert (distance == length - 5) == together
