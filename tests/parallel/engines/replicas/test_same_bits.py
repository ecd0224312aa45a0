"""A repeated training gives the same bits, whichever device finishes first.

``ANYRIG_TEST_RUNS=20`` trains twenty times, here and in the groups of `test_group_ranks.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from same_bits import RUNS, Everything, batches, digest
from torch import nn

import anyrig

pytestmark = pytest.mark.gpus(4)


def train(
    kind: str = "",
    shares: str | Sequence[float] = "auto",
    sync_batch_norm: bool = False,
) -> str:
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss()
    model = anyrig.spread(
        Everything().to("cuda:0"),
        anyrig.Rig.parse("cuda:0,1,2,3"),
        plan=anyrig.Replicas(shares=shares, sync_batch_norm=sync_batch_norm, local_statistics=True),
        loss=loss if kind in ("loss", "no_sync") else None,
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for step, (x, y) in enumerate(batches("cuda:0")):
        if kind == "scattered":
            value = anyrig.ParallelLoss(loss)(model.scattered(x), y)
        elif kind == "no_sync" and step % 2 == 0:
            with model.no_sync():
                model(x, target=y).backward()
            continue
        else:
            value = model(x, target=y) if kind in ("loss", "no_sync") else loss(model(x), y)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value)
    return digest([*model.state_dict().values(), *losses])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kind": "loss"},
        {"kind": "scattered"},
        {"kind": "no_sync"},
        {"kind": "loss", "shares": [1, 4, 2, 3]},
        {"kind": "loss", "sync_batch_norm": True},
    ],
    ids=str,
)
def test_in_one_process(options: dict[str, Any]) -> None:
    found = {train(**options) for _ in range(RUNS)}
    assert len(found) == 1, f"{len(found)} results of {RUNS} runs"
