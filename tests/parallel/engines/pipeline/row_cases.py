"""What ranks do in `test_pipeline_over_ranks.py`: several pipelines that divide the batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pair_over_ranks import Pair, batch, close, on_device, perceptron
from pipeline.models_with_losses import Tagger
from pipeline.models_with_losses import batch as labelled
from schedule_cases import Skipping, mean_of_tokens, tokens
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import anyrig
from anyrig.errors import BatchError, SpreadError
from anyrig.parallel.plans import Pipeline
from anyrig.processes.group.membership import current_context


def case_rows_of_different_size() -> None:
    for schedule in ("gpipe", "1f1b"):
        pair = Pair(
            perceptron(), nn.CrossEntropyLoss(), schedule=schedule, micro_batches=3, replicas=2
        )
        assert len(pair.own()) == 8
        for rows in ([4, 4], [5, 3], [1, 6], [7, 0], [0, 2], [4, 4]):
            pair.step(*batch(sum(rows)), rows=rows)
        for module in (pair.model, pair.one):
            module.zero_grad()
            module.get_submodule("0").requires_grad_(False)
        pair.step(*batch(8), rows=[5, 3])


def case_rows_with_batch_norm() -> None:
    module = nn.Sequential(nn.BatchNorm1d(6), *perceptron(5), nn.BatchNorm1d(5), nn.Linear(5, 5))
    for schedule in ("gpipe", "1f1b"):
        pair = Pair(copy.deepcopy(module), nn.CrossEntropyLoss(), schedule=schedule, replicas=2)
        for rows in ([4, 4], [5, 3], [0, 2], [4, 0]):  # buffers are those of the first with samples
            x, y = batch(sum(rows))
            start = sum(rows[: pair.row])
            mine = slice(start, start + rows[pair.row])
            pair.model(x[mine].cpu(), target=y[mine].cpu()).backward()
            pair.one(x[: rows[0] or rows[1]])
            pair.compare_states()


def case_rows_and_outputs() -> None:
    pair = Pair(perceptron(), micro_batches=3, replicas=2)
    for rows in ([4, 4], [5, 3], [7, 0]):
        x, y = batch(sum(rows))
        start = sum(rows[: pair.row])
        mine = slice(start, start + rows[pair.row])
        output = pair.model(x[mine])
        alone = pair.one(x)
        close(output, alone[mine])
        nn.functional.cross_entropy(output, y[mine]).backward()
        nn.functional.cross_entropy(alone, y).backward()
        pair.compare_gradients()


def case_rows_with_own_losses() -> None:
    for name in ("labels_are_shifted", "two_losses"):
        torch.manual_seed(0)
        pair = Pair(Tagger(name), example=((), labelled(4)), replicas=2)
        for rows in ([4, 3], [1, 6], [2, 0], [0, 5]):
            call = labelled(sum(rows))
            start = sum(rows[: pair.row])
            own = {key: each[start : start + rows[pair.row]] for key, each in call.items()}
            pair.model(**own).loss.backward()
            pair.one(**dict(zip(call, on_device(*call.values()), strict=True))).loss.backward()
            pair.compare_gradients()
            for each in (pair.model, pair.one):
                each.zero_grad()
    with pytest.raises(SpreadError, match=r"replicas=2 was given.*net.weights"):
        Pair(Tagger("class_weights"), example=((), labelled(4)), micro_batches=1, replicas=2)


def _with_another_term(output: Any, labels: Tensor) -> Tensor:
    logits = output.logits.flatten(0, 1)
    return nn.functional.cross_entropy(logits, labels.flatten()) + 0.1 * logits.square().mean()


def case_rows_refuse_uneven_means() -> None:
    torch.manual_seed(0)
    model: Any = anyrig.spread(
        Tagger("a_mean_over_samples").double(),
        plan=Pipeline(example=((), labelled(4)), micro_batches=1, replicas=2),
        loss=_with_another_term,
    )
    call = labelled(4)
    row = dist.get_rank() * 2 // dist.get_world_size()
    own = {key: each[2 * row : 2 * row + 2] for key, each in call.items()}
    with pytest.raises(BatchError, match=r"Return \(sum, count\)"):
        model(**own, target=own["labels"]).backward()


def case_rows_with_skip_connections() -> None:
    pair = Pair(Skipping(8), mean_of_tokens, micro_batches=4, replicas=2)
    for rows in ([4, 3], [2, 6]):
        start = sum(rows[: pair.row])
        given = tokens(sum(rows))
        ids, mask, target = (each[start : start + rows[pair.row]] for each in given)
        pair.model(ids, mask, target=target).backward()
        total, count = mean_of_tokens(pair.one(*given[:2]), given[2])
        (total / count).backward()
        pair.compare_gradients()


def case_a_loader_that_knows_no_model_is_refused() -> None:
    data = DataLoader(TensorDataset(torch.arange(4)))
    counts = current_context().counts
    model = anyrig.spread(perceptron(), plan=Pipeline())
    with pytest.raises(BatchError, match=r"anyrig\.distribute\(loader, model\)"):
        anyrig.distribute(data)
    anyrig.distribute(data, model)
    before, counts["pipelines"] = counts["pipelines"], 0  # as in a new program
    anyrig.distribute(data)
    with pytest.raises(SpreadError, match="distributed without a model, so that each rank has sa"):
        anyrig.spread(perceptron(), plan=Pipeline())
    counts["pipelines"], counts["loaders without a model"] = before, 0


def case_rows_of_a_distributed_loader() -> None:
    """The ranks of a pipeline have the same samples; two pipelines have every sample once."""
    x, y = (tensor.cpu() for tensor in batch(23))
    data = DataLoader(TensorDataset(x, y, torch.arange(23)), batch_size=6, shuffle=True)
    ranks = dist.get_world_size()
    for replicas in (1, 2) if ranks == 4 else (1,):
        pair = Pair(perceptron(), nn.CrossEntropyLoss(), replicas=replicas)
        loader = anyrig.distribute(data, pair.model, seed=3)
        alone: list[list[int]] = []
        for u, v, numbers in loader:
            of_ranks: list[Any] = [None] * ranks
            dist.all_gather_object(of_ranks, numbers.tolist())
            size = ranks // replicas
            rows = [of_ranks[number * size] for number in range(replicas)]
            assert of_ranks == [row for row in rows for _ in range(size)]
            whole = [number for row in rows for number in row]
            alone.append(whole)
            for each in (pair.model, pair.one):
                each.zero_grad()
            pair.model(u, target=v).backward()
            pair.alone(*on_device(x[whole], y[whole])).backward()
            pair.compare_gradients()
        assert sorted(number for each in alone for number in each) == list(range(23))
