"""What ranks do in `test_pipeline_over_ranks.py`: states, clipped gradients and overflows."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pair_over_ranks import Pair, batch, close, on_device, perceptron
from schedule_cases import Skipping, mean_of_tokens, tokens
from torch import Tensor, nn

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.engines.pipeline.over_ranks.elsewhere import Elsewhere
from anyrig.parallel.engines.pipeline.over_ranks.rank_calls import spread_overflow
from anyrig.parallel.plans import Pipeline


def case_saving_and_loading() -> None:
    folder = Path(tempfile.gettempdir()) / f"pipeline-{dist.get_world_size()}-{os.getppid()}"
    for module, loss in (
        (perceptron, nn.CrossEntropyLoss()),
        (lambda: Skipping(8), mean_of_tokens),
    ):
        pair = Pair(module(), loss)
        optimizers = [torch.optim.AdamW(each.parameters(), 0.1) for each in (pair.model, pair.one)]
        calls = batch(7) if module is perceptron else tokens(7)
        for _ in range(2):
            pair.model(*calls[:-1], target=calls[-1]).backward()
            found = loss(pair.one(*calls[:-1]), calls[-1])
            (found[0] / found[1] if isinstance(found, tuple) else found).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        saved = anyrig.save(folder, model=pair.model, optimizer=optimizers[0])
        alone = Pair(module(), loss).one
        other = torch.optim.AdamW(alone.parameters(), 0.1)
        anyrig.load(saved, model=alone, optimizer=other)
        for (name, ours), theirs in zip(
            alone.named_parameters(), pair.one.parameters(), strict=True
        ):
            close(ours, theirs, name)
            for part, value in optimizers[1].state[theirs].items():
                close(other.state[ours][part], value, f"{name}.{part}")
        again = Pair(module(), loss)
        with torch.no_grad():
            for parameter in again.own().values():
                parameter.zero_()
        third = torch.optim.AdamW(again.model.parameters(), 0.1)
        anyrig.load(saved, model=again.model, optimizer=third)
        again.one = pair.one
        again.compare_states()
        for name, parameter in again.own().items():
            theirs = dict(pair.one.named_parameters())[name]
            for part, value in optimizers[1].state[theirs].items():
                close(third.state[parameter][part], value, f"{name}.{part}")
    anyrig.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)


def case_clipping_and_scaling() -> None:
    pair = Pair(perceptron(), nn.CrossEntropyLoss())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (pair.model, pair.one)]
    scalers = [torch.amp.GradScaler(pair.device.type) for _ in range(2)]
    x, y = batch(8)
    for norm_type in (2.0, float("inf")):
        for loss, scaler in zip((pair.model(x, target=y), pair.alone(x, y)), scalers, strict=True):
            scaler.scale(loss).backward()
        with pytest.raises(SpreadError, match=r"clip gradients with model\.clip_grad_norm_"):
            torch.nn.utils.clip_grad_norm_(pair.model.parameters(), 1.0)
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            scaler.unscale_(optimizer)
        expected = torch.nn.utils.clip_grad_norm_(pair.one.parameters(), 0.01, norm_type)
        close(pair.model.clip_grad_norm_(0.01, norm_type), expected)
        pair.compare_gradients()
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
    pair.compare_states()


def case_a_gradient_that_overflows() -> None:
    pair = Pair(perceptron())
    its_links = pair.model._engine._pipeline.links
    for overflows in (False, True):
        (gradient,) = on_device(torch.ones(2, 2))
        if overflows and pair.rank == 0:
            gradient[1, 1] = torch.inf
        spread_overflow([None, gradient], pair.device, its_links)
        assert bool(gradient.isfinite().all()) is not overflows


class PlusHalf(nn.Linear):
    """Adds what it computes in float16 from its input, which gets no gradient from that."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x.detach().half()).to(x.dtype)


def case_an_overflow_of_the_only_parameters_in_float16() -> None:
    net = nn.Sequential(*perceptron(8).double(), PlusHalf(5, 5, dtype=torch.float16))
    model: Any = anyrig.spread(net, plan=Pipeline())
    (model(batch(4)[0]).sum() * 1e6).backward()
    own = [each.grad for each in model.parameters() if not isinstance(each, Elsewhere)]
    assert not all(bool(gradient.isfinite().all()) for gradient in own)
