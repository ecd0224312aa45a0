"""What ranks do in `test_group_ranks.py`: means and values gathered over ranks."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from group_of_ranks import device, rank, ranks
from numbered_samples import numbers
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import anyrig
from anyrig.errors import BatchError, RankMismatchError

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Metrics:
    loss: Any
    kept: Any


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
