"""Training runs with sequences of unequal lengths. Each function is one rank's part of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler

from anyrig import Rig

SAMPLES, WORDS, CLASSES, STEPS = 16, 30, 5, 2
PADDING, IGNORED = 0, -1
LENGTHS = torch.randint(2, 12, (STEPS * SAMPLES,), generator=torch.Generator().manual_seed(5))

Collate = Callable[[Sequence[Tensor]], Any]
Loss = Callable[[Tensor, Tensor], Tensor]


class Sequences:
    """Sequences of words; `noise` changes each word by a random number when it is loaded."""

    def __init__(self, noise: int = 1, width: int = 0) -> None:
        generator = torch.Generator().manual_seed(5)
        self.noise, self.width = noise, width
        self.samples = [
            torch.randint(1, WORDS - 5, (int(one),), generator=generator) for one in LENGTHS
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> Tensor:
        sample = self.samples[place]
        sample = sample + torch.randint(self.noise, (len(sample),))
        return nn.functional.pad(sample, (0, max(0, self.width - len(sample))))


def in_rows(samples: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    labels = [torch.where(one == PADDING, IGNORED, one % CLASSES) for one in samples]
    return pad_sequence(samples, True), pad_sequence(labels, True, IGNORED)


def in_columns(samples: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    words, labels = in_rows(samples)
    return words.T.contiguous(), labels.T.contiguous()


def of_all_ranks(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the sum over what counts on this rank, divided by all that counts."""
    count = (labels != IGNORED).sum()
    dist.all_reduce(count)
    loss = nn.CrossEntropyLoss(ignore_index=IGNORED, reduction="sum")
    losses = loss(scores.flatten(0, 1), labels.flatten())
    return losses * dist.get_world_size() / count


def masked_mean(scores: Tensor, labels: Tensor) -> Tensor:
    mask = (labels != IGNORED).float()
    squares = (scores.mean(-1) - labels / CLASSES).square()
    return (squares * mask).sum() / mask.sum()


def mean_with_padding(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.clamp(min=0).flatten())


def _train(loss_of: Loss, data: Sequences, collate: Collate = in_rows) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, 8, padding_idx=PADDING), nn.Linear(8, CLASSES))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ranks = dist.get_world_size()
    sampler = DistributedSampler(data, ranks, dist.get_rank(), shuffle=False)
    for words, labels in DataLoader(data, SAMPLES // ranks, sampler=sampler, collate_fn=collate):
        optimizer.zero_grad()
        loss_of(parallel(words), labels).backward()
        optimizer.step()


def masks_padding(_: Rig) -> None:
    _train(of_all_ranks, Sequences())


def puts_time_first(_: Rig) -> None:
    _train(of_all_ranks, Sequences(), in_columns)


def averages_by_mask(_: Rig) -> None:
    _train(masked_mean, Sequences())


def averages_rows_of_one_width_by_mask(_: Rig) -> None:
    _train(masked_mean, Sequences(width=12))


def counts_padding(_: Rig) -> None:
    _train(mean_with_padding, Sequences())


def draws_words(_: Rig) -> None:
    _train(of_all_ranks, Sequences(noise=5))


# The exit status, and a part of the text.
EXPECTED = {
    "masks_padding": (0, "collate function made its batches from the same samples"),
    "puts_time_first": (0, "collate function made its batches from the same samples"),
    "averages_by_mask": (1, "    the ranks divide the sums of their losses by unequal numbers ("),
    "averages_rows_of_one_width_by_mask": (1, "    the ranks divide the sums of their losses by"),
    "counts_padding": (
        1,
        "probably: the ranks' batches have the shapes (4, 10), (4, 6), (4, 11), (4, 10), and",
    ),
    "draws_words": (
        2,
        "collate function in_rows got the samples of the same indices, and returned",
    ),
}
