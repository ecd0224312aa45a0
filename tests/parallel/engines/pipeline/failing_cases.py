"""What ranks do in `test_pipeline_over_ranks.py`: failures, refusals, and who waits."""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from on_ranks import TIME_LIMIT_SECONDS
from pair_over_ranks import Pair, batch, close, error_of, perceptron
from torch import Tensor, nn

import anyrig
from anyrig.parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere
from anyrig.parallel.engines.pipeline.stage import Stage
from anyrig.parallel.plans import Pipeline
from anyrig.processes.time_limit import TIME_LIMIT_VARIABLE


class Failing(nn.Module):
    """Raises for negative inputs, or in the backward pass for large ones."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < -100).any()):
            raise ValueError("a negative input")
        return Fail.apply(x) if bool((x > 100).any()) else x.clone()


class Fail(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("a large input")


class Shifted(nn.Linear):
    """Returns its input unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0 + x


def failing(layer: int) -> nn.Sequential:
    """Return layers that return their inputs, one of which may fail."""
    layers: list[nn.Module] = [Shifted(6, 6) for _ in range(8)]
    layers[layer] = nn.Sequential(Failing(), Shifted(6, 6))
    return nn.Sequential(*layers)


def case_failing_stages() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for layer, bad in ((7, -1e3), (0, -1e3), (7, 1e3), (0, 1e3)):
        for schedule in ("1f1b", "gpipe"):
            model: Any = anyrig.spread(
                failing(layer).double(),
                plan=Pipeline(micro_batches=4, schedule=schedule),
                loss=nn.MSELoss(),
            )
            x = torch.zeros(8, 6, dtype=torch.float64, requires_grad=True)
            model(x, target=torch.zeros(8, 6)).backward()
            given = x.detach().clone()
            given[5] = bad  # in micro-batch 2
            given.requires_grad_()
            model._engine._pipeline.links._limit = timedelta(seconds=TIME_LIMIT_SECONDS)
            started = time.monotonic()
            found = error_of(lambda: model(given, target=torch.zeros(8, 6)).backward())  # noqa: B023
            assert time.monotonic() - started < TIME_LIMIT_SECONDS  # no rank waited for its limit
            culprit = 0 if layer == 0 else ranks - 1
            what = "a negative input" if bad < 0 else "a large input"
            assert what in found, found
            assert f"on rank {culprit}" in found, found
            assert "micro-batch 2 of 0 to 3" in found, found
            assert f"in stage {0 if layer == 0 else ranks - 1} of 0 to {ranks - 1}" in found
            assert found.startswith("ValueError" if rank == culprit else "OtherRankError"), found
            assert ("which was given" in found) is (bad < 0)
            assert "has failed" in error_of(lambda: model(x, target=torch.zeros(8, 6)))  # noqa: B023
            anyrig.barrier()


def case_ranks_that_call_differently() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    x, y = batch(8)
    with torch.set_grad_enabled(dist.get_rank() > 0):
        found = error_of(lambda: pair.model(x, target=y))
    assert found.startswith("RankMismatchError"), found
    assert "without gradients" in found
    found = error_of(lambda: pair.model(x[: 5 + dist.get_rank()], target=y[: 5 + dist.get_rank()]))
    assert found.startswith("RankMismatchError"), found
    assert "distribute(loader)" in found
    found = error_of(lambda: pair.model(x[:, : 5 + min(1, dist.get_rank())], target=y))
    assert found.startswith("RankMismatchError"), found
    for _ in range(2):  # later calls agree with their first message
        pair.step(x, y)  # the refused calls have sent nothing
        part = slice(5 + dist.get_rank())
        found = error_of(lambda: pair.model(x[part], target=y[part]))  # noqa: B023
        assert found.startswith("RankMismatchError"), found


def case_layers_in_different_modes() -> None:
    """Modes and frozen parameters of nested layers decide what stages send, too."""
    layers = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(8)]
    pair = Pair(nn.Sequential(*layers), nn.CrossEntropyLoss())
    x, y = batch(8)
    nested = pair.module.get_submodule("0.0")
    for change in (nested.train, nested.requires_grad_):
        pair.step(x, y)
        change(pair.rank == 0)
        found = error_of(lambda: pair.model(x, target=y))
        assert found.startswith("RankMismatchError"), found
        assert "modes or frozen parameters differ" in found
        change(True)


def case_rows_in_different_modes() -> None:
    """The modes decide whether pipelines exchange buffers, so all must have the same."""
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), replicas=2)
    x, y = batch(8)
    mine = slice(0, 4) if pair.row == 0 else slice(4, 8)
    for _ in range(2):  # later calls agree with their first message
        pair.step(x, y, rows=[4, 4])
        pair.model.train(pair.row == 0)
        found = error_of(lambda: pair.model(x[mine], target=y[mine]))
        assert found.startswith("RankMismatchError"), found
        assert "modes" in found
        pair.model.train()


class Turn:
    """Lets ranks wait for an event on one of them; a wait ends after 20 seconds."""

    def __init__(self, pair: Pair, name: str) -> None:
        self._board, self._name = pair.model._engine._pipeline.links.board, name

    def come(self) -> None:
        """Let ranks continue that wait for rank 0."""
        if dist.get_rank() == 0:
            self._board.post(self._name, b"")

    def wait(self) -> None:
        self._board.wait_until(
            lambda: self._board.look([self._name]) != [None], lambda: [0], 20, self._name, ""
        )


def case_the_first_stage_begins_before_the_other_ranks_call() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), micro_batches=4)
    x, y = batch(8)
    pair.step(x, y)  # shows that no buffer is written
    turn = Turn(pair, "a test's first stage")
    hook = pair.module.get_submodule("0").register_forward_hook(lambda *_: turn.come())
    if pair.rank:
        turn.wait()
    pair.step(x, y)
    hook.remove()


def case_no_rank_waits_for_the_weights_of_others() -> None:
    """Ranks get the loss while the last rank has still to compute gradients of weights."""
    pair = Pair(perceptron(), nn.CrossEntropyLoss(), micro_batches=4, schedule="zero-bubble")
    x, y = batch(8)
    pair.step(x, y)  # shows that no buffer is written
    turn = Turn(pair, "a test's loss")
    waited = []
    compute = Stage.backward_weights

    def late(stage: Stage, numbers: Sequence[int]) -> None:
        if 3 in numbers and pair.rank == pair.ranks - 1:
            turn.wait()
            waited.append(3)
        compute(stage, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "backward_weights", late)
        loss = pair.model(x, target=y)
        turn.come()
    assert waited == ([3] if pair.rank == pair.ranks - 1 else [])
    alone = pair.alone(x, y)
    close(loss, alone)
    for each in (loss, alone):
        each.backward()
    pair.compare_gradients()


class Masking(nn.Module):
    """Returns the samples whose first element is positive."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


def case_shapes_that_depend_on_values() -> None:
    layers = [nn.Linear(6, 6) for _ in range(4 * dist.get_world_size())]
    net = nn.Sequential(Masking(), *layers).double()
    model: Any = anyrig.spread(net, plan=Pipeline(), loss=lambda output, _: output.sum())
    x = torch.ones(8, 6, dtype=torch.float64)
    model(x, target=x)
    x[3] = -1
    found = error_of(lambda: model(x, target=x))
    if dist.get_rank() == 0:
        assert "SpreadError" in found, found
    assert "changed although the arguments have the same shapes" in found or dist.get_rank() > 1


def case_refusals() -> None:
    ranks = dist.get_world_size()
    found = error_of(lambda: anyrig.spread(perceptron(ranks - 1), plan=Pipeline()))
    assert found.startswith("SpreadError"), found
    assert "that can be on different ranks" in found
    assert "does not divide" in error_of(
        lambda: anyrig.spread(perceptron(), plan=Pipeline(replicas=ranks))
    )
    width = 6 + dist.get_rank()
    found = error_of(lambda: anyrig.spread(perceptron(width=width), plan=Pipeline()))
    assert found.startswith("RankMismatchError"), found
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    elsewhere = next(p for p in pair.model.parameters() if isinstance(p, Elsewhere))
    assert f"on rank {elsewhere.on_rank}" in error_of(lambda: elsewhere.square())
    for kept in (pair.model, pair.model.state_dict(), elsewhere):
        assert error_of(lambda: torch.save(kept, io.BytesIO())).startswith("ShardSave")  # noqa: B023
    assert error_of(lambda: copy.deepcopy(pair.model)).startswith("SpreadError")
    state = pair.one.state_dict()
    pair.model.load_state_dict(state)
    pair.model.load_state_dict(pair.model.state_dict())
    pair.compare_states()
    with pytest.raises(RuntimeError):  # the tensor has no memory
        elsewhere.untyped_storage().data_ptr()
    assert elsewhere.device == pair.device


def case_sums_end_with_a_rank_that_fails() -> None:
    its_links = Pair(perceptron(), nn.CrossEntropyLoss()).model._engine._pipeline.links
    its_links._limit = timedelta(seconds=TIME_LIMIT_SECONDS)
    started = time.monotonic()
    if dist.get_rank() == 0:
        its_links.fail(ValueError("a test's failure"))
    else:
        found = error_of(lambda: its_links.add_up(torch.ones(1)))
        assert found.startswith("OtherRankError"), found
        assert "a sum over ranks, and rank 0 failed: ValueError: a test's failure" in found
    assert time.monotonic() - started < TIME_LIMIT_SECONDS  # no rank waited for its limit
    anyrig.barrier()


def case_sums_wait_for_a_late_rank_until_their_limit() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TIME_LIMIT_VARIABLE, "60")
        its_links = Pair(perceptron(), nn.CrossEntropyLoss()).model._engine._pipeline.links
    rank, ones = dist.get_rank(), torch.ones(3)
    if rank == 0:
        time.sleep(0.3)
    its_links.add_up(ones)
    assert ones.tolist() == [dist.get_world_size()] * 3
    its_links._limit = timedelta(seconds=0.3)
    if rank:
        found = error_of(lambda: its_links.add_up(ones))
        assert found.startswith("RankWaitError"), found
        assert "a sum over ranks" in found
    anyrig.barrier()
