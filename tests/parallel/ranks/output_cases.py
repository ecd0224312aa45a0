"""What ranks do in `test_distributed.py`: outputs, losses of any form, and gradients of inputs."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pair_of_models import Pair
from torch import Tensor, nn
from torch.nn import functional
from trained_models import CLASSES, WIDTH, perceptron

import anyrig
from anyrig.errors import BatchError, SpreadError
from anyrig.parallel.plans import Replicas, Shards


def case_gradients_of_inputs_are_those_of_what_is_returned() -> None:
    """They are those of the global loss with `loss=`, and of the rank's own loss without."""
    criterion = nn.CrossEntropyLoss()
    for plan in (Replicas(), Shards()):
        for fused in (False, True):
            options = {"plan": plan, "loss": criterion if fused else None}
            pair = Pair(
                nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES)), **options
            )
            for rows in ([4] * pair.ranks, [1 + 2 * rank for rank in range(pair.ranks)]):
                input_gradients_agree(pair, rows, fused)


def input_gradients_agree(pair: Pair, rows: list[int], fused: bool) -> None:
    torch.manual_seed(3)  # the tables of all ranks are the same
    tables = [nn.Embedding(5, WIDTH, device=pair.device) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    criterion = nn.CrossEntropyLoss()
    added = torch.randn(sum(rows), WIDTH, device=pair.device)
    words = torch.randint(5, (sum(rows),), device=pair.device)
    y = torch.randint(CLASSES, (sum(rows),), device=pair.device)
    whole = added.clone().requires_grad_()
    criterion(pair.one(tables[0](words) + whole), y).backward()
    mine, own_words, target = pair.mine(rows, added, words, y)
    mine = mine.clone().requires_grad_()
    given = tables[1](own_words) + mine  # an embedding that is not spread
    if fused:
        pair.model(given, target=target).backward()
    else:
        criterion(pair.model(given), target).backward()
    # The rank's own loss is the mean over its samples; the global loss contains a part of it.
    scale = 1.0 if fused else sum(rows) / max(rows[pair.rank], 1)
    (expected,) = pair.mine(rows, whole.grad)
    torch.testing.assert_close(mine.grad, scale * expected, rtol=1e-9, atol=1e-15)
    table = tables[1].weight.grad / scale
    dist.all_reduce(table)
    torch.testing.assert_close(table, tables[0].weight.grad, rtol=1e-9, atol=1e-15)
    pair.assert_same("gradients")
    for each in (pair.model, pair.one):
        each.zero_grad()


def case_outputs_of_any_form() -> None:
    """One output is computed from another, one is returned twice, one is changed in place."""

    class Forms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, 6), nn.Linear(6, 6)

        def forward(self, *, x: Tensor, name: str) -> dict[str, Any]:
            hidden = self.first(x)
            last = self.second(hidden)
            return {"hidden": (hidden, last), "again": [last], "bias": self.first.bias, name: 1}

    def loss(outputs: dict[str, Any]) -> Tensor:
        hidden, last = outputs["hidden"]
        last.mul_(3)
        again = outputs["again"][0].square()
        return (hidden.square().sum(1) + again.sum(1)).mean() + outputs["bias"].sum()

    pair = Pair(Forms())
    rows = [4 - 3 * (rank % 2) for rank in range(pair.ranks)]
    x = torch.randn(sum(rows), WIDTH, device=pair.device)
    loss(pair.one(x=x, name="one")).backward()
    outputs = pair.model(x=pair.mine(rows, x)[0], name="one")
    assert outputs["again"][0] is outputs["hidden"][1]
    loss(outputs).backward()
    # A parameter that is returned is weighted like an output: the mean of the weights is 1.
    pair.assert_same("gradients")


def case_every_kind_of_loss() -> None:
    weight = torch.rand(CLASSES, dtype=torch.float64)

    def mean_of_rows(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, reduction="none").mean()

    def sum_and_count(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        losses = functional.cross_entropy(output, target, reduction="none")
        return (losses * (target != 0)).sum(), (target != 0).sum()

    criterions = [
        nn.CrossEntropyLoss(weight, ignore_index=1, label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(reduction="none"),
        mean_of_rows,
        sum_and_count,
    ]
    for criterion in criterions:
        if isinstance(criterion, nn.Module):
            criterion.to(anyrig.Rig.detect().lead.torch_device)
        for last in (5, 0):
            pair = Pair(nn.Linear(4, CLASSES), loss=criterion)
            rows = [2] * (pair.ranks - 1) + [last]
            x = torch.randn(sum(rows), 4, device=pair.device)
            y = torch.randint(CLASSES, (sum(rows),), device=pair.device)
            whole = criterion(pair.one(x), y)
            whole = whole[0] / whole[1] if isinstance(whole, tuple) else whole
            whole.mean().backward()
            mine, target = pair.mine(rows, x, y)
            with torch.no_grad():
                untold = pair.model(mine, target=target)
            found = pair.model(mine, target=target)
            found.mean().backward()
            expected = pair.mine(rows, whole)[0] if whole.dim() else whole
            for value in (found, untold):
                torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
            pair.assert_same("gradients")


class OwnLoss(nn.Linear):
    """Computes the loss in its forward, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__(4, CLASSES)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = super().forward(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def case_a_model_that_computes_its_own_loss() -> None:
    """Each rank gets the loss of its own samples, and the gradients of all ranks' samples."""
    for fused in (False, True):
        for last in (5, 0):
            pair = Pair(OwnLoss(), loss=(lambda output, target: output["loss"]) if fused else None)
            rows = [2 + rank for rank in range(pair.ranks - 1)] + [last]
            x = torch.randn(sum(rows), 4, device=pair.device)
            y = torch.randint(CLASSES, (sum(rows),), device=pair.device)
            whole = pair.one(x, y)["loss"]
            whole.backward()
            mine, labels = pair.mine(rows, x, y)
            if fused:
                loss = pair.model(mine, labels=labels, target=labels)
                again = pair.model(mine, labels=labels, target=None)
                torch.testing.assert_close(again, whole, rtol=1e-9, atol=0)
            else:
                loss = pair.model(mine, labels=labels)["loss"]
                if labels.numel():
                    own = pair.one(mine, labels)["loss"]
                    torch.testing.assert_close(loss, own, rtol=1e-9, atol=0)
            loss.backward()
            pair.assert_same("gradients")
            reported = anyrig.mean_over_ranks(loss, weight=rows[pair.rank])
            torch.testing.assert_close(reported, whole.detach(), rtol=1e-9, atol=0)


def case_outputs_and_targets_of_different_lengths() -> None:
    """Outputs are padded to the longest sequence of each rank, and are not broadcast."""
    device = anyrig.Rig.detect().lead.torch_device
    model = anyrig.spread(nn.Linear(2, 1).to(device), loss=nn.MSELoss())
    with pytest.raises(BatchError, match=r"\(3, 1\) and \(3, 9\).*total_length="):
        model(torch.ones(3, 2), target=torch.ones(3, 9, device=device))


def case_scattered_returns_a_list_of_this_ranks_output() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    x, y = torch.ones(3, WIDTH, device=device), torch.ones(3, CLASSES, device=device)
    for plan in (Replicas(), Shards()):
        model = anyrig.spread(perceptron().to(device), plan=plan, loss=nn.MSELoss())
        (output,) = model.scattered(x)
        assert torch.equal(output, model(x))
        with pytest.raises(TypeError, match=r"scattered\(\) returns outputs"):
            model.scattered(x, target=y)


def case_a_target_that_is_not_given_as_target_is_explained() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    x = torch.ones(2, WIDTH, device=device)
    y = torch.zeros(2, dtype=torch.long, device=device)
    for plan in (Replicas(), Shards()):
        model = anyrig.spread(perceptron().to(device), plan=plan, loss=nn.CrossEntropyLoss())
        for learns in (True, False):
            with torch.set_grad_enabled(learns), pytest.raises(TypeError) as error:
                model(x, y)
            told = "".join(traceback.format_exception_only(error.value))
            assert "write model(x, target=y) instead of model(x, y)" in told
        model(x, target=y).backward()
    with pytest.raises(SpreadError, match=r"MSELoss is a class.* nn\.MSELoss\(\)"):
        anyrig.spread(perceptron(), loss=nn.MSELoss)


class _OfNested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, nested: Tensor) -> Tensor:
        return self.layer(torch.nested.to_padded_tensor(nested, 0.0))


def case_strided_nested_inputs_with_gradients_are_refused() -> None:
    device = anyrig.Rig.detect().lead.torch_device
    model = anyrig.spread(_OfNested().to(device))
    rows = [torch.randn(length, WIDTH, device=device) for length in (2, 3)]
    model(torch.nested.as_nested_tensor(rows)).sum().backward()
    with pytest.raises(BatchError, match=r"nested tensor of 2 parts.*layout=torch\.jagged"):
        model(torch.nested.as_nested_tensor([row.requires_grad_() for row in rows]))
