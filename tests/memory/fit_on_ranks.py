"""`fit_batch_size` over four unequal ranks: DDP, FSDP2 and spread models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from survive_on_ranks import error_of, refused_before_2_13
from test_batch_size import assert_equal
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anyrig
from anyrig.errors import MemoryTrackingError, OtherRankError
from anyrig.memory import BatchFit, fit_batch_size
from anyrig.memory.rank_agreement import Ranks

MIB = 2**20
LIMITS_MIB = (96, 80, 64, 128)
SMALLEST = 2


def limited(case: Callable[[], None]) -> Callable[[], None]:
    """Let each rank use so much more memory than now, in single precision."""

    def run() -> None:
        torch.cuda.empty_cache()
        limit_bytes = torch.cuda.memory_reserved() + LIMITS_MIB[dist.get_rank()] * MIB
        torch.cuda.set_per_process_memory_fraction(limit_bytes / 2**30)
        torch.set_default_dtype(torch.float32)
        try:
            case()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            torch.set_default_dtype(torch.float64)

    return run


def agreed(fit: BatchFit) -> BatchFit:
    """Check that all ranks tried the same batches and found the same one."""
    shown = (fit.samples, fit.largest_samples, fit.reason, len(fit.micro_batches))
    mine = (*shown, [(probe.samples, probe.fits, probe.failed) for probe in fit.probes])
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    assert found == [mine] * len(found)
    assert len(fit.probes) <= 12
    return fit


def fill(samples: int) -> None:
    held = torch.empty(samples, MIB, device="cuda", dtype=torch.int8)
    dist.all_reduce(held[0, :1])


def the_smallest_gpu_decides() -> None:
    fit = agreed(fit_batch_size(fill, margin=0.0))
    assert fit.largest_samples in (63, 64)
    assert fit.reason.endswith(f" ran out of memory on rank {SMALLEST}")
    failed = {rank for probe in fit.probes for rank in probe.failed}
    assert SMALLEST in failed
    assert f": out of memory on rank {SMALLEST}" in str(fit)


def a_global_batch_is_that_of_all_ranks() -> None:
    rank = dist.get_rank()
    fit = agreed(fit_batch_size(fill, margin=0.0, global_batch=402))
    assert fit.micro_batches == ((51, 50) if rank < 2 else (50, 50))
    size = "51 or 50" if rank < 2 else "50"
    assert f"a global batch of 402 takes 2 of {size} on this rank" in str(fit)
    # The first rank has one sample more than fits.
    above = agreed(fit_batch_size(fill, margin=0.0, global_batch=4 * fit.largest_samples + 1))
    assert len(above.micro_batches) == 2
    whole = agreed(fit_batch_size(fill, margin=0.0, global_batch=10))
    assert whole.micro_batches == ((3,) if rank < 2 else (2,))
    assert (whole.samples, whole.reason) == (3, "no larger batch was asked for")
    error = error_of(lambda: fit_batch_size(fill, global_batch=3))
    assert isinstance(error, MemoryTrackingError)
    assert "gives 4 ranks less than one sample each; give at least 4" in str(error)


def the_least_number_counts() -> None:
    rank, ranks = dist.get_rank(), Ranks()
    assert ranks.least(10 + rank) == 10
    assert ranks.least(None if rank == 0 else 10 + rank) == 11
    assert ranks.least(None) is None


def build(kind: str) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(2048, 4), nn.Dropout(), nn.Linear(4, 3)).cuda()
    criterion = nn.CrossEntropyLoss()
    if kind == "fsdp":
        fully_shard(net[0])
        fully_shard(net)
    elif kind == "ddp":
        net = DistributedDataParallel(net)
    elif kind == "spread":
        model = anyrig.spread(net, loss=criterion)
        return model, lambda x, y: model(x, target=y)
    elif kind == "spread in shards":
        net = anyrig.spread(net, plan=anyrig.Shards())
    return net, lambda x, y: criterion(net(x), y)


def nothing_has_changed(kind: str) -> None:
    net, loss_of = build(kind)
    optimizer = torch.optim.Adam(net.parameters())

    def step(samples: int) -> None:
        x = torch.ones(samples, 2048, device="cuda")
        loss_of(x, torch.zeros(samples, dtype=torch.long, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()

    def state() -> Any:
        values = [each.detach() for each in net.parameters()]
        moments = [v for values in optimizer.state.values() for v in values.values()]
        local = [each.to_local() if hasattr(each, "to_local") else each for each in values]
        held = [each.to_local() if hasattr(each, "to_local") else each for each in moments]
        random = [torch.get_rng_state(), torch.cuda.get_rng_state()]
        return copy.deepcopy([local, held, random])

    step(3)
    before = state()
    fit = agreed(fit_batch_size(step))
    assert_equal(state(), before)
    # A batch has 8 KiB a sample on the GPU; the rest of a step takes less than half of the limit.
    assert 0.5 < fit.samples * 8 / 1024 / LIMITS_MIB[SMALLEST] < 1
    assert fit.reason.endswith(f" ran out of memory on rank {SMALLEST}")
    step(fit.samples)
    losses = torch.cat([each.detach().float().flatten()[:1].cpu() for each in before[0][:1]])
    assert losses.isfinite().all()


def other_errors_reach_all_ranks() -> None:
    net, loss_of = build("ddp")

    def step(samples: int) -> None:
        x = torch.ones(samples, 2048, device="cuda")
        loss = loss_of(x, torch.zeros(samples, dtype=torch.long, device="cuda"))
        if samples > 1 and dist.get_rank() == 1:
            raise KeyError("label")
        loss.backward()

    error = error_of(lambda: fit_batch_size(step))
    if dist.get_rank() == 1:
        assert repr(error) == "KeyError('label')"
    else:
        assert isinstance(error, OtherRankError)
        assert "because rank 1 failed" in str(error)
    assert all(each.grad is None for each in net.parameters())
    step(1)


def one_sample_does_not_fit() -> None:
    error = error_of(lambda: fit_batch_size(lambda samples: fill(70 * samples)))
    if dist.get_rank() == SMALLEST:
        assert isinstance(error, torch.OutOfMemoryError)
    else:
        assert isinstance(error, OtherRankError)
        assert f"rank {SMALLEST} ran out of memory in a step with one sample" in str(error)


CASES = {
    f"fit: {name}": limited(case)
    for name, case in {
        "the smallest GPU decides": the_smallest_gpu_decides,
        "a global batch": a_global_batch_is_that_of_all_ranks,
        "the least number": the_least_number_counts,
        "other errors": other_errors_reach_all_ranks,
        "one sample": one_sample_does_not_fit,
        "ddp": lambda: nothing_has_changed("ddp"),
        "fsdp": refused_before_2_13("fsdp", lambda: nothing_has_changed("fsdp")),
        "spread": lambda: nothing_has_changed("spread"),
        "spread in shards": refused_before_2_13(
            "spread in shards", lambda: nothing_has_changed("spread in shards")
        ),
    }.items()
}
