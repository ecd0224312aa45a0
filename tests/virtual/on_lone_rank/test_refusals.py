"""What rank 0 cannot answer for ranks that do not run raises an error, which names the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.usefixtures("group")

RANKS = 16
REMEDY = "each in a process of its own: without --ranks, and with --device all"


def on(device: str, *sizes: int) -> list[torch.Tensor]:
    return [torch.zeros(size, device=device) for size in sizes]


def uneven(device: str) -> list[torch.Tensor]:
    return on(device, *range(1, RANKS + 1))


CALLS: dict[str, Callable[[str], object]] = {
    "send": lambda device: dist.send(on(device, 1)[0], 3),
    "recv": lambda device: dist.recv(on(device, 1)[0], 3),
    "batch_isend_irecv": lambda device: dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, on(device, 1)[0], 1), dist.P2POp(dist.irecv, on(device, 1)[0], 15)]
    ),
    "all_to_all": lambda device: dist.all_to_all(uneven(device), uneven(device)),
    "all_to_all_single": lambda device: dist.all_to_all_single(
        on(device, 17)[0], on(device, 17)[0], [2, *[1] * 15], [2, *[1] * 15]
    ),
    "all_gather": lambda device: dist.all_gather(uneven(device), on(device, 1)[0]),
    "reduce_scatter": lambda device: dist.reduce_scatter(on(device, 1)[0], uneven(device)),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_that_need_another_rank(name: str, device: str) -> None:
    with pytest.raises(dist.DistBackendError, match=r"rank 0 alone \(--ranks\)") as refusal:
        CALLS[name](device)
    assert REMEDY in str(refusal.value)


def test_values_that_only_another_rank_has() -> None:
    with pytest.raises(dist.DistBackendError, match=r"broadcast from rank 3 .* only rank 3 has"):
        dist.broadcast(torch.zeros(1), 3)
    with pytest.raises(dist.DistBackendError, match="scatter from rank 3"):
        dist.scatter(torch.zeros(1), src=3)
    with pytest.raises(dist.DistBackendError, match="broadcast from rank 3") as refusal:
        dist.broadcast_object_list([None], 3)
    assert REMEDY in str(refusal.value)
    with pytest.raises(dist.DistBackendError, match="recv from any rank"):
        dist.recv(torch.zeros(1))


def test_values_that_were_not_received_stay_unknown() -> None:
    parts = uneven("cuda")
    with pytest.raises(dist.DistBackendError):
        dist.all_gather(parts, torch.ones(1, device="cuda"))
    with pytest.raises(RuntimeError, match="needs the values"):
        parts[3].tolist()


def test_the_store_does_not_wait_for_other_ranks() -> None:
    store = dist.distributed_c10d._get_default_store()
    store.set("mine", "5")
    assert store.get("mine") == b"5"
    assert store.add("count", 2) == 2
    assert store.add("count", 1) == 3
    assert store.check(["mine", "count"])
    assert not store.check(["mine", "yours"])
    assert store.compare_set("mine", "5", "6") == b"6"
    assert store.compare_set("mine", "5", "7") == b"6"
    assert store.compare_set("other", "5", "6") == b"5"  # it has no value, so not the expected one
    assert not store.check(["other"])
    assert store.compare_set("other", "", "6") == b"6"
    store.append("mine", "7")
    assert store.multi_get(["mine", "count"]) == [b"67", b"3"]
    store.multi_set(["a", "b"], ["1", "2"])
    store.wait(["a", "b"])
    assert store.delete_key("a")
    assert not store.delete_key("a")
    with pytest.raises(dist.DistStoreError, match=r"key '.*yours' of the store") as refusal:
        store.get("yours")
    assert REMEDY in str(refusal.value)
    with pytest.raises(dist.DistStoreError):
        store.wait(["b", "yours"])


@pytest.mark.parametrize(("rank", "size"), [(0, 4), (3, 16)])
def test_groups_that_are_not_those_of_the_rehearsal(rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="rank 0 of 16 ranks and no other") as refusal:
        dist.ProcessGroupNCCL(dist.HashStore(), rank, size)
    assert "RANK and WORLD_SIZE from its environment" in str(refusal.value)
