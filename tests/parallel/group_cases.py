"""What ranks do in `test_group_ranks.py`; each case runs on every rank."""

from __future__ import annotations

import copy
import gc
import io
import random
import socket
import time
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_cases import (  # noqa: F401 - cases of three ranks, too
    TIME_LIMIT_SECONDS,
    case_gradients_of_inputs_are_those_of_what_is_returned,
    case_models_follow_each_other,
)
from same_bits import RUNS, Everything, batches, digest
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
)

import anyrig
from anyrig.errors import BatchError, OtherRankError, RankMismatchError, RankWaitError, SharesError
from anyrig.parallel.plans import Replicas, Shards
from anyrig.parallel.ranks.balance import Balance
from anyrig.parallel.ranks.loaders.agreed_order import draw_alike, mix_seed
from anyrig.parallel.shares.shares import Shares
from anyrig.parallel.shares.trial import Trial
from anyrig.processes.group import node_sockets
from anyrig.processes.group.board import board_of
from anyrig.processes.group.direct_messages import open_messages
from anyrig.processes.group.membership import current_context, join_group

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Metrics:
    loss: Any
    kept: Any


def rank() -> int:
    return dist.get_rank()


def ranks() -> int:
    return dist.get_world_size()


def device() -> torch.device:
    group = join_group()
    assert group is not None
    return group.device


def store() -> Any:
    group = join_group()
    assert group is not None
    return board_of(group)._store


def keys() -> int:
    return int(store().num_keys())


def note(what: str) -> None:
    """Report an event to the other ranks."""
    store().set(f"test {what}", "")


def noted(what: str) -> bool:
    return bool(store().check([f"test {what}"]))


def at_once() -> None:
    """Wait for all ranks before a timed part, by a barrier that is not the tested one."""
    dist.barrier()


# Waiting ------------------------------------------------------------------------------------------


def case_a_barrier_waits_for_the_last() -> None:
    at_once()
    if rank() == 1:
        time.sleep(0.1)
        note("the last one came")
    anyrig.barrier()
    assert noted("the last one came")


def case_a_barrier_names_whom_it_waited_for() -> None:
    at_once()
    anyrig.barrier()
    if rank() == 1:
        at_once()
        anyrig.barrier()  # late, but returns: all ranks have come
    else:
        with pytest.raises(
            RankWaitError,
            match=rf"rank {rank()} waited at a barrier \(group_cases.py:\d+ in case_a_barrier_"
            r"names_whom_it_waited_for\), and rank 1 did not take part within 0.4 s: rank 1 "
            r"last reached a barrier at group_cases.py:\d+ in case_a_barrier_names_whom_it_waited_"
            r"for, \d+ s ago\. ",
        ):
            anyrig.barrier(timeout_seconds=0.4)
        at_once()
    anyrig.barrier()  # the ranks count the same barriers again


def case_many_barriers_leave_no_keys() -> None:
    for _ in range(3):
        anyrig.barrier()
    at_once()
    before = keys()
    at_once()
    for _ in range(50):
        anyrig.barrier()
    at_once()
    assert keys() <= before + 4  # a rank may not have removed its key of the last one


def case_the_first_rank_works_while_the_others_wait() -> None:
    at_once()
    with anyrig.only_first_rank() as first:
        assert first is (rank() == 0)
        if first:
            time.sleep(0.1)
            note("the first one worked")
    assert noted("the first one worked")


def case_blocks_of_the_first_rank_leave_no_keys() -> None:
    at_once()
    before = keys()
    at_once()
    for _ in range(20):
        with anyrig.only_first_rank():
            pass
    at_once()
    assert keys() == before


def case_an_error_of_the_first_rank_reaches_the_others() -> None:
    def fail() -> None:
        with anyrig.only_first_rank(timeout_seconds=10) as first:
            if first:
                raise KeyError("no such file")

    if rank() == 0:
        with pytest.raises(KeyError):
            fail()
    else:
        with pytest.raises(
            OtherRankError,
            match=r"(?s)rank 0 failed in only_first_rank\(\) \(group_cases.py:\d+ in fail\)"
            r".*in fail\n.*KeyError: 'no such file'",
        ):
            fail()


def case_an_error_of_another_rank_stays_its_own() -> None:
    try:
        with anyrig.only_first_rank(timeout_seconds=20) as first:
            if first:
                store().wait(["test rank 1 left"], timedelta(seconds=10))
            if rank() == 1:
                raise ValueError("mine")
    except ValueError:
        assert rank() == 1
        note("rank 1 left")  # this rank no longer waits


def case_the_first_rank_is_waited_for_by_name() -> None:
    if rank() == 0:
        at_once()
        with anyrig.only_first_rank():
            pass
    else:
        with (
            pytest.raises(
                RankWaitError,
                match=r"at the end of only_first_rank.* rank 0 did not take part within 0.3 s",
            ),
            anyrig.only_first_rank(timeout_seconds=0.3),
        ):
            pass
        at_once()


def case_a_block_within_a_block_of_the_first_rank_only() -> None:
    steps = []

    @anyrig.only_first_rank(per_node=True)
    def download() -> int:
        time.sleep(0.1)
        steps.append("download")
        note(f"download {len(steps)}")
        return 3

    with anyrig.only_first_rank() as first:
        if first:
            assert download() == 3  # the other ranks do not reach this line
    assert download() == (3 if rank() == 0 else None)
    assert noted("download 2")  # it waits for this use, not for the earlier one
    assert len(steps) == (2 if rank() == 0 else 0)


def case_the_first_rank_of_each_machine_works() -> None:
    """Rank 0 has a node of its own, and the others share one, by the launcher's variables."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCAL_RANK", str(max(0, rank() - 1)))
        environment.setenv("LOCAL_WORLD_SIZE", "1" if rank() == 0 else str(ranks() - 1))
        with anyrig.only_first_rank(per_node=True, timeout_seconds=20) as first:
            pass

        @anyrig.only_first_rank(per_node=True, timeout_seconds=20)
        def works() -> bool:
            return True

        worked = works() is True
    expected = [other < 2 for other in range(ranks())]
    assert anyrig.gather_over_ranks(first) == anyrig.gather_over_ranks(worked) == expected


def case_printing_once() -> None:
    with redirect_stdout(io.StringIO()) as out:
        anyrig.print_once("a", 1, sep="-", end=".")
    assert out.getvalue() == ("a-1." if rank() == 0 else "")


# Messages -----------------------------------------------------------------------------------------


def take_a_step() -> None:
    """Spread a model, and let the ranks announce a step of it to each other."""
    model = anyrig.spread(nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()


def case_ranks_of_one_node_announce_their_steps_by_sockets() -> None:
    context = current_context()
    take_a_step()
    direct, tried = context.direct, context.counts["direct"]
    assert (direct.rank, direct.limit_seconds) == (rank(), TIME_LIMIT_SECONDS)
    assert direct._sockets.keys() == {*range(ranks())} - {rank()}
    with pytest.MonkeyPatch.context() as patch:
        sent: list[Any] = []
        alltoall = direct.alltoall
        patch.setattr(direct, "alltoall", lambda part: sent.append(part) or alltoall(part))
        take_a_step()
    assert sent
    assert context.direct is direct
    for each in direct._sockets.values():  # a message leaves at once
        assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert context.counts["direct"] == tried  # the ranks connect once


def case_gloo_announces_steps_where_two_ranks_cannot_connect() -> None:
    def refuse(*_: Any) -> None:
        raise ConnectionRefusedError

    context = current_context()
    for change in ("one is late", "another node", "another device", "many ranks"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context, "direct", None)
            patch.setattr(context, "has_tried_direct", False)
            patch.setattr(node_sockets, "_CONNECT_SECONDS", 0.3)
            if change == "many ranks":
                patch.setattr(node_sockets, "_MOST_RANKS", ranks() - 1)
            elif rank() == 1 and change == "one is late":
                patch.setattr(node_sockets, "connect", refuse)
            elif rank() == 1 and change == "another node":
                patch.setenv("LOCAL_WORLD_SIZE", "1")
                patch.setenv("LOCAL_RANK", "0")
            elif rank() == 1:
                patch.setattr(context, "group", replace(context.group, device=torch.device("meta")))
            open_messages(context)
            assert context.direct is None, change
            patch.undo()
            patch.setattr(context, "direct", None)
            take_a_step()


# Metrics ------------------------------------------------------------------------------------------


def case_a_mean_is_that_of_all_rows() -> None:
    rows = 3 + 4 * rank()
    mine = torch.arange(rows, dtype=torch.float64) + 10.1 * rank()
    every = torch.cat(
        [torch.arange(3.0 + 4 * r, dtype=torch.float64) + 10.1 * r for r in range(ranks())]
    )
    value = {
        "loss": float(mine.mean()),
        "exact": mine.mean().to(device()),
        "metrics": Metrics(
            Pair(torch.full((2, 1), mine.mean(), dtype=torch.float32, device=device()), None), "val"
        ),
        "list": [rank() + 1, bool(rank()), complex(0, rank())],
    }
    mean = anyrig.mean_over_ranks(value, weight=rows)
    assert mean["loss"] == pytest.approx(every.mean().item(), rel=1e-14)
    assert mean["exact"].item() == pytest.approx(every.mean().item(), rel=1e-14)
    left, right = mean["metrics"].loss
    assert isinstance(mean["metrics"].loss, Pair)
    assert (left.shape, left.device, left.dtype) == ((2, 1), device(), torch.float32)
    assert left[0, 0].item() == pytest.approx(every.mean().item(), rel=1e-6)
    assert (right, mean["metrics"].kept) == (None, "val")
    weights = [3 + 4 * r for r in range(ranks())]
    ordinal = sum(w * r for r, w in enumerate(weights)) / sum(weights)
    assert mean["list"][0] == pytest.approx(ordinal + 1)
    assert mean["list"][1] == pytest.approx(1 - weights[0] / sum(weights))
    assert mean["list"][2] == pytest.approx(complex(0, ordinal))


def case_a_mean_keeps_dtypes_and_no_graph() -> None:
    half = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    mean = anyrig.mean_over_ranks(
        {"b": half, "a": torch.tensor([rank()]), "c": torch.ones(1, dtype=torch.complex64)}
    )
    assert (mean["b"].dtype, mean["b"].requires_grad) == (torch.bfloat16, False)
    assert mean["a"].dtype is torch.get_default_dtype()
    assert mean["a"].item() == pytest.approx((ranks() - 1) / 2)
    assert mean["c"].dtype is torch.complex64


def case_what_has_no_weight_does_not_count() -> None:
    value = (
        {"a": 2.0, "b": torch.ones(2)}
        if rank() == 0
        else {"b": torch.ones(2) / 0, "a": float("nan")}
    )
    mean = anyrig.mean_over_ranks(value, weight=5 if rank() == 0 else 0)
    assert mean["a"] == 2.0
    assert mean["b"].tolist() == [1.0, 1.0]
    nothing = anyrig.mean_over_ranks(1.0, weight=torch.tensor(0))
    assert nothing != nothing


def refuses(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(RankMismatchError, match=text):
        call()
    assert anyrig.mean_over_ranks(1.0) == 1.0  # all ranks can continue


def case_values_that_do_not_fit_together() -> None:
    odd = rank() == 1
    refuses(
        lambda: anyrig.mean_over_ranks({"a": [1.0, torch.ones(2 + odd, dtype=torch.float32)]}),
        r"rank 0 has a tensor of float32 and shape \(2,\) at \['a'\]\[1\], but rank 1 has a tensor "
        r"of float32 and shape \(3,\) at \['a'\]\[1\]",
    )
    refuses(
        lambda: anyrig.mean_over_ranks({"a": 1} | ({"b": 2} if odd else {})),
        r"rank 0 has nothing more, but rank 1 has a number at \['b'\]",
    )
    refuses(
        lambda: anyrig.mean_over_ranks("x" if odd else "y"), "'y' at the value, but rank 1 has 'x'"
    )
    refuses(
        lambda: anyrig.mean_over_ranks({"a": object() if odd else 1}),
        r"rank 1 in mean_over_ranks\(\): there is no mean of the object at \['a'\]",
    )
    refuses(
        lambda: anyrig.mean_over_ranks(1.0, weight=-1 if odd else 1),
        "rank 1 .*a weight is a number from zero up; got -1",
    )
    refuses(
        lambda: anyrig.mean_over_ranks(1.0) if odd else anyrig.gather_over_ranks(1.0),
        r"rank 1 calls mean_over_ranks\(\), while rank 0 calls gather_over_ranks\(\)",
    )
    refuses(
        lambda: anyrig.gather_over_ranks(
            {"a": (1, torch.ones(1, dtype=torch.float32) if odd else 1)}
        ),
        r"rank 0 has a value of type int at \['a'\]\[1\], but rank 1 has a 1-dimensional ten",
    )
    refuses(
        lambda: anyrig.gather_over_ranks(torch.ones(1, dtype=torch.int32 if odd else torch.int64)),
        "rank 0 has a 1-dimensional tensor of int64 at the value, but rank 1 has a 1-d.* of int32",
    )
    refuses(
        lambda: anyrig.gather_over_ranks([torch.ones(1)] * (1 + odd)),
        "rank 0 has 0 at the value, but rank 1 has 0, 1. To give an entry for each sample",
    )
    refuses(
        lambda: anyrig.gather_over_ranks(torch.ones(1).to_sparse() if odd else torch.ones(1)),
        "rank 1 .*a tensor that is not dense",
    )
    refuses(
        lambda: anyrig.gather_over_ranks({"a": (i for i in ()) if odd else 1}),
        "rank 1 .*cannot be sent to other ranks: .*generator",
    )


def case_gathering_parts_of_any_number_of_rows() -> None:
    rows = 2 * rank()  # rank 0 has none
    every = [row for r in range(ranks()) for row in [r] * 2 * r]
    value = {
        "scores": torch.full((rows, 3), float(rank()), device=device(), requires_grad=True),
        "flags": torch.full((rows,), rank() == 1),
        "halves": Pair(torch.full((rows,), rank(), dtype=torch.bfloat16), None),
        "names": [f"of {rank()}"] * rows,
        "one": torch.tensor(rank()),
        "count": rank(),
        "metrics": Metrics([torch.full((1,), rank())], torch.full((rows,), -1j * rank()).conj()),
        "wide": torch.ones(1, 1 + rank()),
    }
    found = anyrig.gather_over_ranks(value)
    assert found["scores"].tolist() == [[float(r)] * 3 for r in every]
    assert (found["scores"].device, found["scores"].requires_grad) == (device(), True)
    assert found["flags"].tolist() == [r == 1 for r in every]
    assert found["halves"].left.tolist() == every
    assert (found["halves"].left.dtype, found["halves"].right) == (torch.bfloat16, None)
    assert found["names"] == [f"of {r}" for r in every]
    assert found["one"].tolist() == found["count"] == list(range(ranks()))
    assert found["metrics"].loss[0].tolist() == list(range(ranks()))
    assert found["metrics"].kept.tolist() == [1j * r for r in every]
    assert found["wide"].sum(1).tolist() == [1.0 + r for r in range(ranks())]


def case_gathering_what_nobody_has() -> None:
    found = anyrig.gather_over_ranks({"a": torch.ones(0, 2), "b": [], "c": None})
    assert (found["a"].shape, found["b"], found["c"]) == ((0, 2), [], None)


def case_gathering_keys_in_another_order() -> None:
    names = ["a", "b"] if rank() == 0 else ["b", "a"]
    found = anyrig.gather_over_ranks({name: name for name in names})
    assert found == {name: [name] * ranks() for name in names}


def case_gathering_a_whole_epoch_in_order() -> None:
    data = TensorDataset(torch.arange(29))
    loader = anyrig.distribute(DataLoader(data, batch_size=7), shares=[3, 1, 2][: ranks()])
    loader = anyrig.prefetch(loader, device())
    seen = [x for (x,) in loader]
    names = [f"{i}" for x in seen for i in x.tolist()]
    found = anyrig.gather_over_ranks({"x": torch.cat(seen), "names": names}, loader=loader)
    assert found["x"].tolist() == list(range(29))
    assert found["names"] == [f"{i}" for i in range(29)]
    for batch, x in enumerate(seen):  # within a batch, the samples are in the order of ranks
        whole = range(29)[7 * batch : 7 * batch + 7]
        assert anyrig.gather_over_ranks(x).tolist() == list(whole)
    refuses(
        lambda: anyrig.gather_over_ranks(torch.ones(2), loader=loader),
        "but the loader's first batches gave them",
    )


def case_values_and_loaders_need_no_garbage_collection() -> None:
    loader = anyrig.distribute(DataLoader(numbers(6), 3))
    gc.collect()
    gc.disable()
    try:
        anyrig.gather_over_ranks({"seen": [torch.cat([y for _, y in loader])]}, loader=loader)
        anyrig.mean_over_ranks({"loss": torch.ones(())}, weight=rank())
        assert (
            gc.collect() == 0
        )  # a cycle would end a loader's workers late: PyTorch waits 5 s for each
        loader_ref = weakref.ref(loader)
        del loader
        assert loader_ref() is None
    finally:
        gc.enable()


def case_gathering_without_what_padding_repeated() -> None:
    data = TensorDataset(torch.arange(4 * ranks() + 1))
    sampler = DistributedSampler(data, shuffle=False)
    given = DataLoader(data, batch_size=2, sampler=sampler)
    with pytest.raises(BatchError, match="divided already, by its DistributedSampler"):
        anyrig.distribute(given)
    loader = anyrig.distribute(given, divided=True)
    found = anyrig.gather_over_ranks(torch.cat([x for (x,) in loader]), loader=loader)
    assert found.tolist() == list(range(4 * ranks() + 1))


# Loaders ------------------------------------------------------------------------------------------


def numbers(rows: int) -> TensorDataset:
    return TensorDataset(torch.arange(rows, dtype=torch.float64), torch.arange(rows))


def global_order(loader: Any) -> list[int]:
    """Return the samples of one epoch in the order of the global batches."""
    seen = [y for _, y in loader]
    counts = anyrig.gather_over_ranks(len(seen))
    assert len(set(counts)) == 1, f"the ranks have {counts} batches"
    return anyrig.gather_over_ranks(torch.cat(seen).cpu(), loader=loader).tolist()


def case_every_sample_once_in_the_order_of_one_process() -> None:
    torch.manual_seed(5 if rank() == 0 else 99)  # rank 0's seed counts
    loader = anyrig.distribute(DataLoader(numbers(23), batch_size=5, shuffle=True))
    torch.manual_seed(5)
    epochs = []
    for epoch in range(2):
        torch.rand(rank())
        epochs.append(global_order(loader))
        assert sorted(epochs[-1]) == list(range(23)), epoch
        expected = [(3, 2, 0), (3, 2, 0), (3, 2, 0), (3, 2, 0), (3, 0, 0)]
        if ranks() == 3:
            assert loader.samples_of_batches == expected
    assert epochs[0] != epochs[1]
    alone = draw_alike(
        DataLoader(numbers(23), batch_size=5, shuffle=True).batch_sampler, mix_seed(5, 0)
    )
    assert [i for batch in alone for i in batch] == epochs[0]


def case_resuming() -> None:
    loader = anyrig.distribute(DataLoader(numbers(23), batch_size=5, shuffle=True), seed=2)
    epochs = [global_order(loader) for _ in range(2)]
    loader.set_epoch(1, skip_batches=3)
    assert global_order(loader) == epochs[1][15:]


def case_resuming_where_ranks_have_batches_of_their_own() -> None:
    given = [torch.ones(2, 3) for _ in range(3 + rank())]
    loader = anyrig.distribute(given, divided=True)
    loader.set_epoch(0, skip_batches=2)
    assert [len(batch) for batch in loader] == [2] * (1 + rank()) + [0] * (ranks() - 1 - rank())


def case_samples_are_counted_along_their_dimension() -> None:
    torch.manual_seed(0)
    alone = torch.nn.Linear(3, 2).double()
    whole = torch.randn(4, ranks() * (ranks() + 1) // 2, 3, dtype=torch.float64)
    part = whole.split([other + 1 for other in range(ranks())], 1)[rank()]
    model = anyrig.spread(copy.deepcopy(alone).to(device()), dim=1)
    model(part).square().mean().backward()
    alone(whole).square().mean().backward()
    for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), expected.grad, rtol=1e-9, atol=0)


def case_a_last_batch_too_small_for_all() -> None:
    loader = anyrig.distribute(DataLoader(numbers(2 * ranks() + 1), batch_size=2 * ranks()))
    last = list(loader)[-1]
    assert [len(part) for part in last] == ([1, 1] if rank() == 0 else [0, 0])
    assert [part.dtype for part in last] == [torch.float64, torch.int64]
    given = DataLoader(numbers(1), collate_fn=lambda samples: samples[0][0].new_ones(3, 2))
    with pytest.raises(BatchError, match="empty=function") if rank() else redirect_stdout(None):
        list(anyrig.distribute(given))
    list(anyrig.distribute(given, empty=lambda: torch.ones(0)))


def case_workers_and_prefetching() -> None:
    given = DataLoader(
        numbers(23), 5, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=3
    )
    loader = anyrig.prefetch(anyrig.distribute(given, shares=[2, 1, 1][: ranks()]), device())
    assert (len(loader), loader.batch_size, loader.num_workers) == (5, 5, 2)
    epochs = [global_order(loader) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(23))] * 2
    assert epochs[0] != epochs[1]


class Augmented(Dataset[torch.Tensor]):
    """Draws new values for each sample, as random augmentation does."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand((), dtype=torch.float64)

    def __len__(self) -> int:
        return 4 * ranks()


def case_workers_of_no_two_ranks_and_epochs_draw_the_same() -> None:
    loader = anyrig.distribute(DataLoader(Augmented(), 2 * ranks(), num_workers=1), seed=3)
    epochs = [anyrig.gather_over_ranks(torch.cat(list(loader))) for _ in range(2)]
    assert len(torch.cat(epochs).unique()) == 8 * ranks()
    loader.set_epoch(1)
    assert torch.equal(anyrig.gather_over_ranks(torch.cat(list(loader))), epochs[1])


class Shuffled(Sampler[int]):
    """Draws from Python's own generator, batch by batch."""

    def __init__(self, own: random.Random | None = None) -> None:
        self.random: Any = own or random

    def __iter__(self) -> Iterator[int]:
        for start in range(0, 20, 4):
            yield from self.random.sample(range(start, start + 4), 4)


def case_a_sampler_of_the_program_s_own() -> None:
    random.seed(rank())
    loader = anyrig.distribute(DataLoader(numbers(20), batch_size=6, sampler=Shuffled()))
    seen = [y for _, y in zip(loader, range(1), strict=False)]  # left before its end
    assert len(seen) == 1
    found = []
    for (_, y), _ in zip(loader, range(100), strict=False):
        random.random()
        found.append(y)
    assert sorted(anyrig.gather_over_ranks(torch.cat(found)).tolist()) == list(range(20))


def case_samplers_that_do_not_agree() -> None:
    given = DataLoader(numbers(20), batch_size=6, sampler=Shuffled(random.Random(rank())))
    loader = anyrig.distribute(given, shares="even")
    if rank() == 0:
        list(loader)
        return
    with pytest.raises(
        RankMismatchError, match=rf"sampler of rank {rank()} begins with \[.*rank 0 w"
    ):
        list(loader)


def case_subsets_that_do_not_agree() -> None:
    part = range(rank(), 6 * ranks(), ranks())
    given = DataLoader(Subset(numbers(6 * ranks()), part), batch_size=3)
    loader = anyrig.distribute(given, timeout_seconds=20)
    if rank() == 0:
        list(loader)
        return
    with pytest.raises(
        RankMismatchError, match=rf"rank {rank()} begins with \[{rank()}, .*the whole data on every"
    ):
        list(loader)


def case_a_loader_that_is_divided_already() -> None:
    sampler = DistributedSampler(numbers(6))
    for given in (
        DataLoader(numbers(6), batch_size=2, sampler=sampler),
        DataLoader(numbers(6), batch_sampler=BatchSampler(sampler, 2, False)),
    ):
        with pytest.raises(BatchError, match="divided already, by its DistributedSampler"):
            anyrig.distribute(given)


class Stream(IterableDataset[Any]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return ((float(i), f"name {i}") for i in range(self.rows))


def case_a_stream_is_divided_by_rows() -> None:
    loader = anyrig.distribute(DataLoader(Stream(3 * ranks() + 1), batch_size=3))
    for _ in range(2):
        values, names = zip(*loader, strict=True)
        mine = [name for batch in names for name in batch]
        found = anyrig.gather_over_ranks((torch.cat(values), mine), loader=loader)
        assert found[0].tolist() == list(map(float, range(3 * ranks() + 1)))
        assert found[1] == [f"name {i}" for i in range(3 * ranks() + 1)]
    with pytest.raises(TypeError):
        len(loader)


class DividedStream(Stream):
    """Divides itself among the ranks, as data sets for several GPUs do."""

    def __iter__(self) -> Iterator[Any]:
        return islice(super().__iter__(), rank(), None, ranks())


def case_a_stream_that_divides_itself() -> None:
    samples = 6 * ranks()
    given = DataLoader(DividedStream(samples), batch_size=2)
    refused = anyrig.distribute(given, timeout_seconds=20)
    if rank():
        with pytest.raises(
            RankMismatchError, match=rf"rank {rank()} begins with a diff.* divided=True\); else"
        ):
            list(refused)
    else:
        assert len(next(iter(refused))[0])
    loader = anyrig.distribute(given, divided=True)
    mine = [float(value) for values, _ in loader for value in values]
    every = [value for of_rank in anyrig.gather_over_ranks([mine]) for value in of_rank]
    assert sorted(every) == list(map(float, range(samples)))


def case_streams_with_other_values_of_the_same_samples() -> None:
    given = [torch.full((2 * ranks(), 1), float(rank()))] * 2  # like random augmentation
    loader = anyrig.distribute(given, divided=False)
    assert [batch.tolist() for batch in loader] == [[[rank()]] * 2] * 2


def case_streams_that_end_apart_would_lose_samples() -> None:
    given = DataLoader(Stream(6 if rank() == ranks() - 1 else 8), batch_size=2)
    loader = iter(anyrig.distribute(given, timeout_seconds=20))
    for _ in range(3):
        next(loader)
    if rank() == ranks() - 1:
        with pytest.raises(RankMismatchError, match="ended after 3 global batches, but another"):
            next(loader)
    else:
        next(loader)
    with pytest.raises(RankMismatchError, match=r"of 3 batches, but rank 1 has one of 4\. Give"):
        anyrig.distribute(DataLoader(numbers(3 + min(rank(), 1))))


# A single sample ----------------------------------------------------------------------------------


def case_no_rank_has_a_single_sample_of_several() -> None:
    parts = {}
    for rows in range(1, 11):
        given = DataLoader(numbers(rows), batch_size=10)
        for shares in ("even", [8, 1, 1][: ranks()]):
            loader = anyrig.distribute(given, shares=shares)
            mine = [len(x) for x, _ in loader]
            assert mine == [loader.samples_of_batches[0][rank()]]
            assert anyrig.gather_over_ranks(mine[0]) == list(loader.samples_of_batches[0])
            parts[rows] = loader.samples_of_batches[0]
            assert rows == 1 or 1 not in parts[rows]
    assert parts[10] == {2: (10, 0), 3: (8, 2, 0)}[ranks()]
    # A batch of one sample for each rank allows single samples, and so does singles=True.
    for batch, singles in ((ranks(), None), (2 * ranks() - 1, True)):
        loader = anyrig.distribute(DataLoader(numbers(batch), batch), singles=singles)
        list(loader)
        assert 1 in loader.samples_of_batches[0]


def case_batch_normalization_trains_on_every_last_batch() -> None:
    net = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    model = anyrig.spread(net.to(device()))
    for rows in range(2, 11):
        given = DataLoader(numbers(10 + rows), batch_size=10)
        for x, _ in anyrig.distribute(given, shares=[8, 1, 1][: ranks()]):
            model(x[:, None]).square().mean().backward()


def case_a_single_sample_is_explained() -> None:
    # A rank with a single sample raises before it exchanges anything with the others.
    model = anyrig.spread(nn.Sequential(nn.BatchNorm1d(4)).to(device(), torch.float64))
    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        model(torch.ones(1, 4, dtype=torch.float64))
    text = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "plan=Replicas(sync_batch_norm=True)" in text
    assert "drop_last=True" in text


def case_loaders_that_came_divided_and_end_apart() -> None:
    mine = [torch.full((2, 3), float(rank()))] * (0, 4, 2)[rank()]
    loader = anyrig.distribute(mine, divided=True)
    assert len(loader) == 4
    for _ in range(3):  # iterations follow each other without a wait
        rows = [len(batch) for batch in loader]
        assert rows == [2] * len(mine) + [0] * (4 - len(mine))
    assert loader.shares is None
    assert all(batch.shape[1:] == (3,) for batch in loader)


def case_ranks_that_distribute_different_things() -> None:
    given: Any = DataLoader(numbers(4)) if rank() else [torch.ones(1)]
    with pytest.raises(RankMismatchError, match=r"rank 0 .* without indices, but rank 1 has one"):
        anyrig.distribute(given)
    with pytest.raises(SharesError, match=f"7 shares for {ranks()} devices"):
        anyrig.distribute(DataLoader(numbers(4)), shares=[1] * 7)
    with pytest.raises(SharesError, match="shares='best' is not a way to share a batch"):
        anyrig.distribute(DataLoader(numbers(4)), shares="best")


# Unequal ranks ------------------------------------------------------------------------------------


def train(loader: Any, seconds_a_row: float, fixed: float = 0.0) -> list[int]:
    """Report steps as a model would; return how many samples this rank has of each batch."""
    rows = []
    for batch in loader:
        rows.append(len(batch[0]))
        balance = current_context().measuring
        if balance is not None:
            balance.report(rows[-1], fixed + seconds_a_row * rows[-1])
    return rows


def case_a_slow_rank_gets_fewer_rows() -> None:
    given = DataLoader(numbers(1500), 12 * ranks(), num_workers=1, drop_last=True)
    loader = anyrig.distribute(given, shares="speed")
    other = anyrig.distribute(DataLoader(numbers(600), 12 * ranks()), shares="speed")
    assert not loader.shares.held
    train(loader, 1e-3 * (2 if rank() == 0 else 1), 1e-3)
    train(loader, 1e-3 * (2 if rank() == 0 else 1), 1e-3)
    assert loader.shares.held, loader.shares
    assert "by speed" in loader.shares.reason
    assert "12 rows" not in loader.shares.reason  # only in steps before the last change
    sums = [sum(rows) for rows in loader.samples_of_batches]
    assert sums == [12 * ranks()] * len(loader)
    expected = {2: (8, 16), 3: (7, 14, 15)}[ranks()]
    found = loader.samples_of_batches[-1]
    assert all(abs(a - b) <= 1 for a, b in zip(found, expected, strict=True)), found
    assert global_order(loader) == list(range(len(loader) * 12 * ranks()))
    assert current_context().measuring is None
    assert other.shares is loader.shares  # the loader for evaluation has them, too


def case_steps_that_were_drawn_before_a_change_do_not_count() -> None:
    """Batches are drawn twelve steps ahead, as by loaders with many workers."""
    group = join_group()
    assert group is not None
    trial = Trial("speed", (None,) * ranks())
    balanced = Balance(group, Shares((1.0,) * ranks(), "to begin with", trial=trial))
    changes, rows = [], []
    for index in range(56):
        before = balanced.shares
        drawn = balanced.draw(("loader", 0, index))
        rows.append(drawn.split(24 * ranks())[rank()])
        if drawn is not before:
            changes.append(index)
        if index >= 12:
            fixed = 1e-2 * rank()
            balanced.report(rows[index - 12], fixed + 1e-3 * rows[index - 12])
    # Nine steps make a round, and an exchange comes with every fourth batch. At 24 there are twelve
    # steps, and twelve more were drawn: the next round begins at step 24, reported after batch 36.
    assert changes == [24, 48]


class Weighed(nn.Module):
    """Multiplies by a table whose rows are not samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 7)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.layer(x) @ table


def case_samples_are_told_where_another_tensor_has_none() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = [1 + 3 * each for each in range(ranks)]
    x, table = torch.randn(sum(rows), 3), torch.randn(7, 2)
    one = Weighed()
    net = Weighed()
    net.load_state_dict(one.state_dict())
    model = anyrig.spread(net)
    one(x, table).square().mean().backward()
    model(x.split(rows)[rank], table, samples=rows[rank]).square().mean().backward()
    for found, expected in zip(net.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-9, atol=1e-12)


def case_nothing_is_measured_unless_asked() -> None:
    loader = anyrig.distribute(DataLoader(numbers(600), 12 * ranks()))
    assert loader.shares.held
    assert loader.shares.reason == "even: the devices are alike"
    for _ in range(2):
        train(loader, 1e-3 * (2 if rank() == 0 else 1))
        assert current_context().measuring is None
        assert {count for rows in loader.samples_of_batches[:-1] for count in rows} == {12}


def case_unequal_gpus_that_are_unknown_share_evenly() -> None:
    loader = anyrig.distribute(DataLoader(numbers(40), 10))
    assert loader.shares.held
    assert loader.shares.reason.startswith("even: the devices differ, and the rates of "), loader
    list(loader)
    assert loader.samples_of_batches == [(5, 5)] * 4


class Costly(nn.Module):
    """Takes seconds and bytes per sample on a virtual GPU, and none on the host."""

    def __init__(self, seconds: float = 0.0, bytes_: int = 0) -> None:
        super().__init__()
        self.seconds, self.bytes = seconds, bytes_
        self.layer = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(int(1.41e9 * self.seconds * len(x)))
        torch.empty(self.bytes * len(x), dtype=torch.uint8, device=x.device)
        return self.layer(x)


def rows_learned(policy: str, module: nn.Module) -> tuple[int, ...]:
    """Train until the shares are held, and return each rank's samples of the last batch."""
    current_context().balances.clear()
    data = TensorDataset(torch.ones(24 * 40, 1, dtype=torch.float64))
    loader = anyrig.distribute(DataLoader(data, batch_size=24), shares=policy)
    model = anyrig.spread(module.to(device(), torch.float64))
    for (x,) in loader:
        model(x).sum().backward()
    assert loader.shares.held, loader.shares
    assert loader.shares.reason.startswith(f"by {policy}: ")
    return loader.samples_of_batches[-1]


def case_gpus_learn_shares_by_speed() -> None:
    torch.empty(2**29, dtype=torch.uint8, device=device())
    torch.cuda.empty_cache()
    peak = torch.cuda.max_memory_allocated()
    first, second = rows_learned("speed", Costly(seconds=1e-3 * (1 + rank())))
    assert abs(first - 16) <= 1
    assert first + second == 24
    assert torch.cuda.max_memory_allocated() == peak  # measuring has not reset it


def case_gpus_learn_shares_by_memory() -> None:
    """A sample takes 32 MiB. GPU 0 has 2 GiB, half of them taken; GPU 1 has 1 GiB."""
    ballast = torch.empty(2**30 if rank() == 0 else 0, dtype=torch.uint8, device=device())
    torch.cuda.reset_peak_memory_stats()
    first, second = rows_learned("memory", Costly(bytes_=2**25))
    assert abs(first - 5) <= 1  # (1 GiB + 5 rows) / 2 GiB = 19 rows / 1 GiB
    assert first + second == 24
    del ballast


def case_evaluation_exchanges_less_and_less() -> None:
    current_context().balances.clear()
    loader = anyrig.distribute(DataLoader(numbers(400), batch_size=2), shares="speed")
    group = join_group()
    assert group is not None
    before = board_of(group)._counts["shares"]
    list(loader)
    assert 3 < board_of(group)._counts["shares"] - before < 8


def case_training_is_that_of_the_global_batches() -> None:
    torch.manual_seed(1)
    rows = 6 * ranks() + 1
    data = TensorDataset(*torch.randn(rows, 7, dtype=torch.float64).split([5, 2], 1))
    module, alone = (
        nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).to(device(), torch.float64)
        for _ in range(2)
    )
    alone.load_state_dict(module.state_dict())
    criterion = nn.MSELoss()
    model = anyrig.spread(module)
    given = DataLoader(data, batch_size=2 * ranks(), shuffle=True)
    loader = anyrig.prefetch(anyrig.distribute(given, seed=3), device())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, alone)]
    for _ in range(2):
        for x, y in loader:
            whole_x, whole_y = anyrig.gather_over_ranks((x, y))
            criterion(model(x), y).backward()
            criterion(alone(whole_x), whole_y).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def case_gpus_with_a_default_device() -> None:
    samples = 6 * ranks() + 1
    torch.set_default_device("cuda")
    try:
        x = torch.randn(samples, 4, device="cpu")
        given = DataLoader(TensorDataset(x, x[:, :1]), batch_size=2 * ranks(), shuffle=True)
        loader = anyrig.distribute(given, seed=3)
        model = anyrig.spread(nn.Linear(4, 1), loss=nn.MSELoss())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        seen = []
        for x, y in anyrig.prefetch(loader, device()):
            loss = model(x, target=y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(y.clone())
        anyrig.mean_over_ranks({"loss": loss.detach(), "of one": 1.0}, weight=len(y))
        found = anyrig.gather_over_ranks(torch.cat(seen), loader=loader)
        assert anyrig.gather_over_ranks({"rank": rank()}) == {"rank": [*range(ranks())]}
        dealt = DataLoader(numbers(5), sampler=DistributedSampler(numbers(5), shuffle=False))
        mine = torch.cat([y for _, y in dealt])
        whole = anyrig.gather_over_ranks(mine, loader=dealt)
        assert whole.tolist() == list(range(5))
    finally:
        torch.set_default_device(None)
    order = draw_alike(given.batch_sampler, mix_seed(3, 0))
    wanted = torch.stack([given.dataset[i][1] for batch in order for i in batch])
    assert found.tolist() == wanted.tolist()


def case_training_again_gives_the_same_bits() -> None:
    torch.set_default_dtype(torch.float32)
    x, y = (torch.cat(parts) for parts in zip(*batches("cpu"), strict=True))
    for plan in (Replicas(), Shards()):
        for loss in (None, nn.CrossEntropyLoss()):
            found = set()
            for _ in range(RUNS):
                torch.manual_seed(0)
                model = anyrig.spread(Everything().to(device()), plan=plan, loss=loss)
                optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
                loader = anyrig.distribute(DataLoader(TensorDataset(x, y), 37, shuffle=True))
                for mine, target in anyrig.prefetch(loader, device()):
                    if loss is None:
                        nn.functional.cross_entropy(model(mine), target).backward()
                    else:
                        model(mine, target=target).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                whole = [
                    getattr(each, "full_tensor", lambda x=each: x)() for each in model.parameters()
                ]
                found.add(digest([*whole, *model.buffers()]))
            assert len(found) == 1, f"{len(found)} results of {RUNS} runs: {plan}, {loss}"


class Detector(nn.Module):
    """Takes lists, and returns losses in training, like torchvision's detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)

    def forward(self, images: Any, targets: Any = None) -> Any:
        boxes = torch.stack([self.body(image.mean((1, 2))) for image in images])
        if targets is None:
            return [{"boxes": row} for row in boxes]
        wanted = torch.stack([target["boxes"].sum(0) for target in targets])
        return {"boxes": (boxes - wanted).square().mean(), "size": boxes.square().mean()}


def fields_of(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*samples, strict=True))


def case_training_on_lists_of_samples() -> None:
    torch.manual_seed(1)
    boxes_of = [3, 3, 0, 1, 2, 1, 3]  # the boxes' shapes do not show the sample count
    data = [
        (torch.randn(3, 4 + i, 5).double(), {"boxes": torch.randn(boxes, 4).double()})
        for i, boxes in enumerate(boxes_of)
    ]
    module, alone = (Detector().to(device(), torch.float64) for _ in range(2))
    alone.load_state_dict(module.state_dict())
    model = anyrig.spread(module)
    # The last rank has one sample fewer; in the last batch, most ranks have none.
    size = 2 * ranks() - 1
    given = DataLoader(data, batch_size=size, collate_fn=fields_of)
    loader = anyrig.distribute(given, shares="even", singles=True)
    for index, (images, targets) in enumerate(loader):
        sum(model(images, targets).values()).backward()
        part = data[index * size : (index + 1) * size]
        sum(alone(*fields_of(part)).values()).backward()
    assert len(images) == (rank() < 2)
    for mine, theirs in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        assert [found["boxes"].shape for found in model([data[0][0]])] == [(4,)]
