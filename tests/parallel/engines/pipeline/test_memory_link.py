"""Links by memory, with both ends in this process."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from anyrig.parallel.engines.pipeline.over_ranks.contents import Form
from anyrig.parallel.engines.pipeline.over_ranks.memory_link import MemoryLink
from anyrig.parallel.mapped_memory import _MOST_VIEWS, make_sample

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="links by memory need Linux"
)


def make_links() -> tuple[MemoryLink, MemoryLink]:
    one, other = socket.socketpair()
    return MemoryLink(one, os.getpid()), MemoryLink(other, os.getpid())


def forms_of(tensors: Sequence[Tensor]) -> list[Form]:
    return [Form(tuple(each.shape), each.dtype, False) for each in tensors]


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


VALUES = {
    "dtypes": [
        torch.arange(7, dtype=dtype)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64)
    ],
    "eight bits": [
        torch.tensor([True, False, True]),
        torch.arange(3, dtype=torch.int8),
        torch.ones(2).to(torch.float8_e4m3fn).view(torch.uint8),
    ],
    "complex": [torch.complex(torch.ones(3), torch.arange(3.0)).conj()],
    "shapes": [torch.tensor(3.0), torch.zeros(0, 4), torch.arange(24.0).view(2, 3, 4)],
    "strides": [torch.arange(12.0).view(3, 4).T, torch.ones(1).expand(5), torch.arange(9.0)[::2]],
    "a leaf": [torch.ones(3, requires_grad=True)],
}


@pytest.mark.parametrize("name", VALUES)
def test_tensors_arrive_as_they_were(name: str) -> None:
    sender, receiver = make_links()
    given = VALUES[name]
    for _ in range(2):
        sender.send(given, 0)
        found = receiver.take(receiver.expect(0), forms_of(given), soon())
        for one, other in zip(found, given, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert torch.equal(one, other.detach().resolve_conj())
            assert not one.requires_grad
    sender.finish_sending(soon())
    assert len(sender._own) == 1


def test_messages_may_be_taken_in_another_order_and_in_both_directions() -> None:
    links = make_links()
    given = [[torch.full((size,), float(size))] for size in (3, 1000, 50)]
    for sender in links:
        for each in given:
            sender.send(each, 0)
    for receiver in links:
        numbers = [receiver.expect(0) for _ in given]
        for place in (2, 0, 1):
            (found,) = receiver.take(numbers[place], forms_of(given[place]), soon())
            assert torch.equal(found, given[place][0])
    for each in links:
        each.finish_sending(soon())


def test_no_pass_takes_messages_of_another() -> None:
    sender, receiver = make_links()
    for tag in (7, 8):
        for number in range(2):
            sender.send([torch.full((3,), 10.0 * tag + number)], tag)
    for tag in (8, 7):
        for number in range(2):
            (found,) = receiver.take(receiver.expect(tag), forms_of([torch.zeros(3)]), soon())
            assert torch.equal(found, torch.full((3,), 10.0 * tag + number))


def test_a_block_is_filled_again_once_its_message_was_taken() -> None:
    sender, receiver = make_links()
    sizes = (10, 20, 10, 20, 5)
    sender.send([torch.zeros(sizes[0])], 0)
    for number, size in enumerate(sizes):
        (found,) = receiver.take(receiver.expect(0), forms_of([torch.zeros(size)]), soon())
        assert torch.equal(found, torch.full((size,), float(number)))
        if number + 1 < len(sizes):
            sender.send([torch.full((sizes[number + 1],), float(number + 1))], 0)
    assert len(sender._own) == 2  # the second one for 20 elements, which take more than 64 bytes


def test_what_arrived_does_not_change_when_the_block_is_filled_again() -> None:
    sender, receiver = make_links()
    sender.send([torch.zeros(4)], 0)
    (first,) = receiver.take(receiver.expect(0), forms_of([torch.zeros(4)]), soon())
    sender.send([torch.ones(4)], 0)
    assert torch.equal(first, torch.zeros(4))
    assert len(sender._own) == 1


def test_a_block_of_an_evaluation_serves_training() -> None:
    sender, receiver = make_links()
    with torch.inference_mode():
        sender.send([torch.zeros(4)], 0)
        receiver.take(receiver.expect(0), forms_of([torch.zeros(4)]), soon())
    sender.finish_sending(soon())
    sender.send([torch.ones(4)], 1)
    (found,) = receiver.take(receiver.expect(1), forms_of([torch.zeros(4)]), soon())
    found.requires_grad_().sum().backward()
    assert torch.equal(found, torch.ones(4))
    assert len(sender._own) == 1


def test_one_block_takes_messages_of_many_forms() -> None:
    sender, receiver = make_links()
    for number, size in enumerate(range(80, 0, -1)):
        given = [torch.full((size,), 1.0 + number), torch.arange(size)]
        sender.send(given, 0)
        found = receiver.take(receiver.expect(0), forms_of(given), soon())
        assert all(map(torch.equal, found, given))
        sender.finish_sending(soon())
    assert len(sender._own) == 1
    assert 0 < len(sender._own[0]._views) <= _MOST_VIEWS < 2 * 80


def test_a_small_message_leaves_the_large_block_to_a_large_one() -> None:
    sender, receiver = make_links()
    messages = [[torch.zeros(1000)], [torch.zeros(4)]]
    for given in (*messages, None, *reversed(messages)):
        if given is None:  # both blocks are free now
            for number, waiting in enumerate(messages):
                receiver.take(receiver.expect(number), forms_of(waiting), soon())
            sender.finish_sending(soon())
        else:
            sender.send(given, 0 if given is messages[0] else 1)
    assert len(sender._own) == 2


def test_one_block_takes_messages_of_one_shape_in_any_dtype() -> None:
    sender, receiver = make_links()
    for number, dtype in enumerate((torch.float32, torch.int32, torch.float32)):
        given = [torch.tensor([1, 2, 3 + number]).to(dtype)]
        sender.send(given, 0)
        (found,) = receiver.take(receiver.expect(0), forms_of(given), soon())
        assert found.dtype is dtype
        assert torch.equal(found, given[0])
        sender.finish_sending(soon())
    assert len(sender._own) == 1


def test_the_sender_waits_until_all_is_taken() -> None:
    sender, receiver = make_links()
    sender.send([torch.zeros(4)], 0)
    with pytest.raises(RuntimeError, match="Timed out"):
        sender.finish_sending(soon(0.02))
    taking = threading.Timer(
        0.05, lambda: receiver.take(receiver.expect(0), forms_of([torch.zeros(4)]), soon())
    )
    taking.start()
    sender.finish_sending(soon())
    taking.join()


def test_waits_end() -> None:
    sender, receiver = make_links()
    with pytest.raises(RuntimeError, match="Timed out"):
        receiver.take(receiver.expect(0), forms_of([torch.zeros(4)]), soon(0.02))
    sender.close()
    # `rank_end` knows by this text that the rank itself is not the cause.
    with pytest.raises(RuntimeError, match=r"Connection (closed|reset) by peer"):
        receiver.take((0, 1), forms_of([torch.zeros(4)]), soon())


def test_a_rank_that_ends_before_its_message_is_taken_is_noticed() -> None:
    sender, receiver = make_links()
    sender.send([torch.zeros(4)], 0)
    sender.close()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        receiver.take(receiver.expect(0), forms_of([torch.zeros(4)]), soon())


def test_another_size_than_expected_is_refused() -> None:
    sender, receiver = make_links()
    sender.send([torch.zeros(100)], 0)
    with pytest.raises(RuntimeError, match="448 bytes arrived instead of 64"):
        receiver.take(receiver.expect(0), forms_of([torch.zeros(4)]), soon())


def test_blocks_are_closed() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    sender, receiver = make_links()
    for _ in range(3):
        sender.send([torch.zeros(4)], 0)
    for _ in range(3):
        receiver.take(receiver.expect(0), forms_of([torch.zeros(4)]), soon())
    sender.finish_sending(soon())
    sender.close()
    receiver.close()
    del sender, receiver
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_block_of_another_process_is_recognised_by_its_contents() -> None:
    sample = make_sample()
    assert sample.can_be_opened()
    assert not sample._replace(secret=sample.secret[::-1]).can_be_opened()
    assert not sample._replace(descriptor=10**6).can_be_opened()
    os.close(sample.descriptor)
