"""What ranks do in `test_distributed.py`: changes of a module after `spread`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from pair_of_models import UNUSED, Pair, full
from torch import Tensor, nn
from trained_models import CLASSES, WIDTH, perceptron

import anyrig
from anyrig.errors import SpreadError
from anyrig.parallel.plans import Shards


def case_changes_after_spread_are_refused() -> None:
    """Otherwise each rank would silently keep its own gradients."""
    device = anyrig.Rig.detect().lead.torch_device
    x = torch.ones(2, 2, device=device)

    def net() -> nn.Module:
        layers = [nn.Linear(2, 2), nn.Tanh(), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)]
        return nn.Sequential(*layers).requires_grad_(True).to(device)

    def change(of: nn.Module, name: str, value: Any) -> Callable[[], None]:
        return lambda: setattr(of, name, value)

    for options, refused in (
        ({}, (True,)),  # only unfreezing is refused
        (UNUSED, (True,)),
        ({"plan": Shards()}, ()),
    ):
        module = net()
        module[3].bias.requires_grad_(False)
        model = anyrig.spread(module, **options)
        changes: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = []
        first, last = module[0], module[3]
        for parameter, named, before in (
            (first.weight, "0.weight", True),
            (last.bias, "3.bias", False),
        ):
            if (not before) not in refused:
                continue
            changes.append(
                (
                    rf"{re.escape(named)}\.requires_grad became {not before}\.",
                    partial(parameter.requires_grad_, not before),
                    partial(parameter.requires_grad_, before),
                )
            )
        new = nn.Parameter(torch.ones_like(full(first.weight)))
        changes += [
            (
                "0.weight was replaced",
                change(first, "weight", new),
                change(first, "weight", first.weight),
            ),
            (
                "3.weight was replaced",
                partial(module.__setitem__, 3, nn.Linear(2, 2, device=device)),
                partial(module.__setitem__, 3, last),
            ),
            (
                "head.weight was added, head.bias was added",
                change(module, "head", nn.Linear(2, 2, device=device)),
                partial(delattr, module, "head"),
            ),
            (
                "scale was added",
                change(module, "scale", nn.Parameter(x.clone())),
                partial(delattr, module, "scale"),
            ),
            ("3.bias was removed", change(last, "bias", None), change(last, "bias", last.bias)),
            (
                "layer 2 was replaced, which has buffers",
                partial(module.__setitem__, 2, nn.BatchNorm1d(2, affine=False).to(device)),
                partial(module.__setitem__, 2, module[2]),
            ),
        ]
        with torch.no_grad():
            model.eval()(x)
        model.train()
        for _ in range(2):  # before the first step, and after it
            for words, make, undo in changes:
                make()
                with pytest.raises(
                    SpreadError, match=f"(?s)has changed since .*{words}.*after changing it"
                ):
                    model(x)
                with torch.no_grad():
                    model.eval()(x)  # averages nothing
                undo()
            module.train()[1] = nn.ReLU()  # has nothing to average
            model(x)
            model(x).sum().backward()  # FSDP2 has already gathered the parameters
            model.zero_grad()
    model = anyrig.spread(net())
    model.load_state_dict(net().state_dict(), assign=True)
    with pytest.raises(
        SpreadError, match=r"0.weight was replaced, 0.bias was replaced, 3.*replaced"
    ):
        model(x)


def case_parameters_that_lost_the_hooks_of_the_gradients_are_refused() -> None:
    """`Tensor.set_`, or another dtype for a while, removes DDP's hooks from parameters."""

    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    def net() -> nn.Module:
        return perceptron().to(anyrig.Rig.detect().lead.torch_device)

    x = torch.ones(2, WIDTH)
    for options in ({}, UNUSED):
        model = anyrig.spread(net(), **options)
        model.module.float().double()
        with pytest.raises(SpreadError, match=r"0\.weight was replaced, 0\.bias was replaced"):
            model(x)
        model = anyrig.spread(net(), **options)
        nn.utils.parametrize.register_parametrization(model.module[0], "weight", Twice())
        with pytest.raises(SpreadError, match=r"0\.parametrizations\.weight\.original was added"):
            model(x)
    model = anyrig.spread(net(), **UNUSED)
    model.module[0].float().double()
    model.module[-1].float().double()
    with pytest.raises(SpreadError, match=r"0\.weight was replaced.* 2\.bias was replaced\. The"):
        model(x)


def steps_of(model: nn.Module, layers: nn.Module, change: str, rows: Any) -> None:
    """Train a model that changes on the way."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = torch.Generator().manual_seed(2)
    for step in range(6):
        x = torch.randn(7, WIDTH, generator=given)[rows].to(next(layers.parameters()).device)
        if change == "froze all" and step in (0, 3):
            layers.requires_grad_(False)
            model(x.requires_grad_()).square().mean().backward()
            layers.requires_grad_(True)
        elif change == "froze some" and step in (2, 4):
            model(x)  # so that FSDP2 has gathered the parameters
            layers[0].requires_grad_(step == 4)
        elif change == "unfroze" and step in (1, 3):
            layers[0].weight.requires_grad_(step == 3)
        elif change == "moved" and step == 2:
            layers[0] = nn.Sequential(layers[0], nn.Identity())
        elif change == "wrote" and step == 2:
            for parameter in layers.parameters():
                parameter.data = parameter.data.clone() * 0.5
        optimizer.zero_grad()
        for _ in range(2):
            model(x).square().mean().backward()
        optimizer.step()


def case_changes_that_leave_the_numbers_right_are_allowed() -> None:
    for change, every in {
        "froze all": [{}, UNUSED, {"plan": Shards()}],
        "froze some": [UNUSED, {"plan": Shards()}],
        "unfroze": [{"plan": Shards()}],
        "moved": [{}, UNUSED, {"plan": Shards()}],
        "wrote": [{}, UNUSED],
    }.items():
        for options in every:
            module = perceptron()
            module[0].weight.requires_grad_(change != "unfroze")
            pair = Pair(module, **options)
            split = 2 * (pair.rank + 1) if pair.rank < pair.ranks - 1 else 7
            own = slice(2 * pair.rank, split)
            steps_of(pair.one, pair.one, change, slice(None))
            steps_of(pair.model, pair.module, change, own)
            pair.assert_same()


def case_a_discriminator_that_is_frozen_while_the_generator_learns() -> None:
    """Freezing it, or calling its `.module`, gives the numbers of one process."""
    for options in ({}, UNUSED, {"plan": Shards()}):
        for way in ("frozen", "module"):
            generator = Pair(perceptron(), **options)
            judge = Pair(
                nn.Sequential(nn.Linear(CLASSES, 5), nn.Tanh(), nn.Linear(5, 1)), **options
            )
            rows = [1 + 2 * rank for rank in range(judge.ranks)]
            batches = [torch.randn(sum(rows), WIDTH, device=judge.device) for _ in range(3)]
            true = torch.randn(sum(rows), CLASSES, device=judge.device)
            for makes, judges, plain, parts in (
                (generator.one, judge.one, judge.one, lambda each: each),
                (
                    generator.model,
                    judge.model,
                    judge.module,
                    lambda each, judge=judge, rows=rows: judge.mine(rows, each)[0],
                ),
            ):
                optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (makes, judges)]
                for x in batches:
                    if way == "frozen":
                        judges.requires_grad_(False)
                    judging = judges if way == "frozen" else plain
                    optimizers[0].zero_grad()
                    judging(makes(parts(x))).tanh().mean().backward()
                    optimizers[0].step()
                    judges.requires_grad_(True)
                    optimizers[1].zero_grad()
                    false = judges(makes(parts(x)).detach())
                    (judges(parts(true)).square().mean() - false.tanh().mean()).backward()
                    optimizers[1].step()
            generator.assert_same()
            judge.assert_same()
