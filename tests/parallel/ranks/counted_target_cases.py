"""What every rank does in the tests of means over targets, in `test_distributed.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pair_of_models import Pair
from pipeline.models_with_losses import LOSSES, Tagger, V, batch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import cross_entropy

import anyrig
from anyrig.errors import BatchError, RankMismatchError, SpreadError
from anyrig.parallel.plans import Plan, Replicas, Shards

# The rows of the ranks in batches of five samples; the last ranks' targets are all ignored.
_ROWS = ([2, 3], [4, 1], [5, 0], [0, 5])
# Their targets are no arguments, or have weights.
_OTHERS = ("class_weights", "targets_of_a_teacher", "labels_changed_in_place")


def _learn(plan: Plan, name: str) -> None:
    pair = Pair(Tagger(name), plan=plan)
    for rows in _ROWS:
        call = {key: each.to(pair.device) for key, each in batch(5).items()}
        alone = pair.one(**call).loss
        alone.backward()
        own = dict(zip(call, pair.mine(rows, *call.values()), strict=True))
        loss = pair.model(**own).loss
        loss.backward()
        whole = anyrig.mean_over_ranks(loss, weight=rows[pair.rank])
        torch.testing.assert_close(whole, alone.detach(), rtol=1e-9, atol=0)
        pair.assert_same("gradients")
        for each in (pair.model, pair.one):
            each.zero_grad()


def case_replicas_take_means_over_the_targets_of_all_ranks() -> None:
    for name in (*LOSSES, *_OTHERS):
        _learn(Replicas(), name)


def case_sharded_modules_take_means_over_the_targets_of_all_ranks() -> None:
    for name in ("labels_are_shifted", "two_losses", "class_weights"):
        _learn(Shards(), name)


def _mean_of_tokens(output: Any, labels: Tensor) -> Tensor:
    found: Tensor = functional.cross_entropy(output.logits.view(-1, V), labels.flatten())
    return found


def _with_another_term(output: Any, labels: Tensor) -> Tensor:
    return _mean_of_tokens(output, labels) + 0.1 * output.logits.square().mean()


def case_a_loss_of_ones_own_takes_means_over_the_targets_of_all_ranks() -> None:
    for loss in (_mean_of_tokens, _with_another_term):
        pair = Pair(Tagger("a_function"), loss=loss)
        for rows in _ROWS:
            words, labels = (each.to(pair.device) for each in batch(5).values())
            alone = loss(pair.one(words, labels), labels)
            alone.backward()
            words, labels = pair.mine(rows, words, labels)
            whole = pair.model(words, labels, target=labels)
            whole.backward()
            torch.testing.assert_close(whole, alone, rtol=1e-9, atol=0)
            pair.assert_same("gradients")
            for each in (pair.model, pair.one):
                each.zero_grad()


def case_accumulated_means_over_targets_are_even_or_refused() -> None:
    pair = Pair(Tagger("a_function"), accumulate=True)

    def step(ignored: int) -> None:
        call = {key: each.to(pair.device) for key, each in batch(3, "nowhere").items()}
        call["labels"][:, :ignored] = -100
        pair.model(**call).loss.backward()

    step(1)
    step(1)
    with pytest.raises(BatchError, match="from 3 to 4 for each sample"):
        step(2)
    pair.model.zero_grad()


class _ByItsName(Tagger):
    def forward(self, words: Tensor, labels: Tensor) -> Any:
        return cross_entropy(self.head(self.embedding(words)).flatten(0, 1), labels.flatten())


def case_a_mean_by_an_imported_name_is_refused() -> None:
    pair = Pair(_ByItsName("a_function"))
    call = {key: each.to(pair.device) for key, each in batch(3).items()}
    with pytest.raises(SpreadError, match="by cross_entropy or nll_loss under an imported"):
        pair.model(**call)


def case_a_contrast_between_the_samples_of_one_rank_is_refused() -> None:
    pair = Pair(Tagger("a_contrast_between_samples"))
    call = {key: each.to(pair.device) for key, each in batch(3).items()}
    with pytest.raises(SpreadError, match="compares the 3 samples of one part"):
        pair.model(**call)


class _SomeRanks(Tagger):
    """Takes a mean over targets on rank 0 alone."""

    def forward(self, words: Tensor, labels: Tensor) -> Any:
        if torch.distributed.get_rank():
            return self.head(self.embedding(words)).square().mean()
        return super().forward(words, labels).loss


def case_a_mean_over_targets_on_one_rank_alone_is_refused() -> None:
    pair = Pair(_SomeRanks("a_function"))
    call = {key: each.to(pair.device) for key, each in batch(3).items()}
    with pytest.raises(RankMismatchError, match="mean over targets 1 in a forward of spread model"):
        pair.model(**call).backward()
