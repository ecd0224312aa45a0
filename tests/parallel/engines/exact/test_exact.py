"""Logical shards in one process; over ranks: `exact_cases.py`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, Dataset

import anyrig
from anyrig.errors import BatchError, MemoryTrackingError, SpreadError
from anyrig.parallel.engines.exact.logical_shards import (
    check_logical_shards,
    indices_of_rank,
    shard_sizes,
)
from anyrig.parallel.engines.exact.price import price_of
from anyrig.parallel.engines.exact.sums import add_in_order
from anyrig.parallel.plans import Exact


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def spread(module: nn.Module, **options: Any) -> Any:
    return anyrig.spread(module, "cpu", **{"plan": Exact(4), "loss": nn.MSELoss(), **options})


class TestDivision:
    @pytest.mark.parametrize("samples", [0, 1, 5, 12, 30])
    def test_ranks_have_every_sample_once_in_whole_logical_shards(self, samples: int) -> None:
        sizes = shard_sizes(samples, 12)
        assert sum(sizes) == samples
        starts = [sum(sizes[:shard]) for shard in range(12)]
        for ranks in (1, 2, 3, 4, 6, 12):
            of_ranks = [indices_of_rank(samples, 12, rank, ranks) for rank in range(ranks)]
            assert sorted(i for own in of_ranks for i in own) == list(range(samples))
            for rank, own in enumerate(of_ranks):
                for shard in range(rank, 12, ranks):
                    here = range(starts[shard], starts[shard] + sizes[shard])
                    assert [*here] == own[: len(here)]
                    own = own[len(here) :]
                assert own == []

    def test_ranks_that_work_are_named(self) -> None:
        assert check_logical_shards(12, 3) == 12
        with pytest.raises(SpreadError, match=r"Start 1, 2, 3, 4, 6, 12 ranks; or begin a new tr"):
            check_logical_shards(12, 5)
        with pytest.raises(
            SpreadError, match=r"Exact\(0\): the number of logical shards must be a pos"
        ):
            check_logical_shards(0, 1)


def test_terms_are_added_from_left_to_right() -> None:
    terms = torch.tensor([[1e8], [1.0], [-1e8], [5.0]])
    out = torch.empty(1)
    assert add_in_order(None, terms, 3, out).item() == 0.0  # 1e8 + 1 is 1e8 in float32
    assert add_in_order(out, terms[1:2], 1, out).item() == 1.0


def test_the_price_of_each_form() -> None:
    assert str(price_of(1200, 12, 4, sharded=False, on_cpu=True)) == (
        "3 logical shards per step, one after another; a rank sends 3.52 KiB per step, instead of "
        "1.76 KiB; 1.46 KiB more memory; one thread per rank"
    )
    shards = price_of(1200, 12, 4, sharded=True, on_cpu=False)
    assert (shards.sent_bytes, shards.usual_bytes, shards.memory_bytes) == (8100, 2700, 300)
    alone = price_of(1200, 12, 1, sharded=False, on_cpu=False)
    assert str(alone) == "12 logical shards per step, one after another; 2.34 KiB more memory"


class TestRandomNumbers:
    def test_a_step_leaves_those_of_the_program_alone(self) -> None:
        model = spread(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 1)))
        x = torch.randn(8, 8)
        before = torch.get_rng_state(), random.getstate()
        first, second = (model(x, target=x[:, :1]).item() for _ in range(2))
        assert first != second  # each step draws other numbers
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        model._engine.state.step = 0
        assert model(x, target=x[:, :1]).item() == first

    @pytest.mark.parametrize("workers", [0, 2])
    def test_augmentation_does_not_depend_on_who_loads(self, workers: int) -> None:
        class Noisy(Dataset[Tensor]):
            def __getitem__(self, index: int) -> Tensor:
                return torch.stack([torch.tensor(float(index)), torch.rand(()) + random.random()])

            def __len__(self) -> int:
                return 10

        model = spread(nn.Linear(1, 1), plan=Exact(5))
        torch.manual_seed(0)
        loader: Any = anyrig.distribute(
            DataLoader(Noisy(), 5, shuffle=True, num_workers=workers), model
        )
        epochs = [torch.cat([*loader]) for _ in range(2)]
        assert not torch.equal(epochs[0].sort(0).values, epochs[1].sort(0).values)
        torch.manual_seed(0)
        again: Any = anyrig.distribute(DataLoader(Noisy(), 5, shuffle=True), model)
        again.set_epoch(0, skip_batches=1)
        random.random()
        assert torch.equal(torch.cat([*again]), epochs[0][5:])


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"loss": None}, "so it needs the loss"),
            ({"loss": nn.MSELoss(reduction="none")}, 'use reduction="mean"'),
            ({"accumulate": True}, "cannot be combined with accumulate="),
            ({"precision": "float16"}, 'use precision="bfloat16"'),
        ],
    )
    def test_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(SpreadError, match=message):
            spread(nn.Linear(1, 1), **options)

    @pytest.mark.gpus(2)
    def test_several_devices_in_one_process(self) -> None:
        with pytest.raises(SpreadError, match="and this process has 2; start the script with any"):
            anyrig.spread(nn.Linear(1, 1), "cuda:0,1", plan=Exact(4), loss=nn.MSELoss())

    def test_outputs_with_gradients(self) -> None:
        model = spread(nn.Linear(1, 1))
        x = torch.ones(4, 1)
        with pytest.raises(SpreadError, match=r"call model\(x, target=y\)"):
            model(x)
        with torch.no_grad():
            assert torch.equal(model(x), model.module(x))

    def test_gradients_of_inputs_and_twice(self) -> None:
        model = spread(nn.Linear(1, 1))
        x = torch.ones(4, 1)
        with pytest.raises(SpreadError, match="an input requires a gradient"):
            model(x.clone().requires_grad_(), target=x)
        loss = model(x, target=x)
        loss.backward(retain_graph=True)
        once = model.weight.grad.clone()
        loss.backward()
        assert torch.equal(model.weight.grad, 2 * once)
        with pytest.raises(RuntimeError, match="delivered by an earlier backward pass"):
            loss.backward()
        with pytest.raises(SpreadError, match="create_graph=True has no graph of them"):
            model(x, target=x).backward(create_graph=True)

    @pytest.mark.parametrize(
        "norm", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True)]
    )
    def test_statistics_of_a_batch(self, norm: nn.Module) -> None:
        model = spread(norm)
        x = torch.randn(8, 3, 2)
        with pytest.raises(SpreadError, match=r"Norm1d takes statistics .* Use GroupNorm or"):
            model(x, target=x)
        norm.eval()
        model(x, target=x)

    def test_statistics_of_a_batch_in_evaluation(self) -> None:
        model = spread(nn.BatchNorm1d(3, track_running_stats=False).eval())
        x = torch.randn(8, 3, 2)
        with pytest.raises(SpreadError, match=r"BatchNorm1d takes statistics .* Use GroupNorm or"):
            model(x, target=x)

    def test_buffers_that_the_forward_changes(self) -> None:
        class Counting(nn.Linear):
            def __init__(self) -> None:
                super().__init__(1, 1)
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x: Tensor) -> Tensor:
                self.calls += 1
                return super().forward(x)

        class Replacing(Counting):
            def forward(self, x: Tensor) -> Tensor:
                self.calls = self.calls + 1
                return nn.Linear.forward(self, x)

        x = torch.ones(4, 1)
        # A second replacement may lie at the address of the first buffer.
        for kind, shards in itertools.product((Counting, Replacing), range(1, 9)):
            model = spread(kind(), plan=Exact(shards))
            for _ in range(2):
                with pytest.raises(SpreadError, match="the forward changes the buffer 'calls'"):
                    model(x, target=x)

    def test_sparse_gradients_and_unreduced_losses(self) -> None:
        x = torch.arange(4)
        with pytest.raises(SpreadError, match="sparse=False"):
            spread(nn.Embedding(4, 1, sparse=True))(x, target=torch.ones(4, 1))
        model = spread(nn.Linear(1, 1), loss=lambda output, target: (output - target).abs())
        with pytest.raises(BatchError, match=r"return a mean or \(sum, count\)"):
            model(torch.ones(4, 1), target=torch.ones(4, 1))

    def test_samples_in_lists(self) -> None:
        model = spread(nn.Linear(1, 1))
        boxes = [{"boxes": torch.ones(4, 1)}, {"boxes": torch.ones(4, 1)}]
        with pytest.raises(BatchError, match="has its samples in lists, or has none; pass"):
            model(torch.ones(4, 1), target=boxes)

    def test_another_number_of_threads(self) -> None:
        model = spread(nn.Linear(1, 1))
        torch.set_num_threads(2)
        with pytest.raises(SpreadError, match=r"call torch.set_num_threads\(1\)"):
            model(torch.ones(4, 1), target=torch.ones(4, 1))

    def test_steps_in_smaller_parts(self) -> None:
        model = spread(nn.Linear(1, 1))
        with pytest.raises(MemoryTrackingError, match="spread with Exact"):
            anyrig.memory.survive(lambda x: model(x, target=x))

    def test_tensor_parallelism(self) -> None:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            module = parallelize_module(
                nn.Linear(2, 2), DeviceMesh("cpu", [0, 1]), ColwiseParallel()
            )
            with pytest.raises(SpreadError, match="weight is a DTensor: with tensor parallelism"):
                spread(module)
        finally:
            torch.distributed.destroy_process_group()


def test_samples_that_a_module_relates_are_refused() -> None:
    model = spread(nn.Sequential(nn.Linear(3, 2), nn.Softmax(0)))
    with pytest.raises(BatchError, match="the module relates samples to each other"):
        model(torch.randn(8, 3), target=torch.randn(8, 2))


def test_targets_that_are_all_ignored_have_zero_gradients() -> None:
    loss = nn.CrossEntropyLoss(ignore_index=2)
    x, target = torch.randn(8, 3), torch.full((8,), 2)
    one = nn.Linear(3, 3)
    several = nn.Linear(3, 3)
    loss(one(x), target).backward()
    model = spread(several, loss=loss)
    whole = model(x, target=target)
    whole.backward()
    assert whole.isnan()
    for own, other in zip(several.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)
        assert own.grad is not None
        assert not own.grad.any()
