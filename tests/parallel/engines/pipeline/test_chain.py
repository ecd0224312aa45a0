"""A chain computes what its module computes, to the bit."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from divided_models import CASES
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors

from anyrig.parallel.engines.pipeline.split.chain_of import chain_of


def run(call: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return result, gradients and buffers of a call from a fixed state and random seed."""
    torch.manual_seed(1)
    random.seed(1)
    module.zero_grad()
    args, kwargs = copy.deepcopy((args, kwargs))
    result = call(*args, **kwargs)
    tensors = [t for t in pytree.tree_leaves(_plain(result)) if isinstance(t, Tensor)]
    sum((t.sin().sum() for t in tensors if t.requires_grad), torch.zeros(())).backward()
    grads = {name: p.grad for name, p in module.named_parameters()}
    return (
        type(result),
        _plain(result),
        grads,
        {name: b.clone() for name, b in module.named_buffers()},
    )


def _plain(value: Any) -> Any:
    return vars(value) if hasattr(value, "logits") else value


def require_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    left, right = pytree.tree_flatten(_plain(a)), pytree.tree_flatten(_plain(b))
    assert left[1] == right[1]
    for x, y in zip(left[0], right[0], strict=True):
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y


@pytest.mark.parametrize("name", CASES)
def test_a_chain_computes_what_its_module_computes(name: str) -> None:
    module, args, kwargs = CASES[name]()
    keys = list(module.state_dict())
    chain = chain_of(module, example=(args, kwargs))
    assert list(module.state_dict()) == keys
    assert len(chain.blocks) > 1
    held = {id(p) for block in chain.blocks for p in block.module.parameters()}
    assert held == {id(p) for p in module.parameters()}
    state = copy.deepcopy(module.state_dict())
    attributes = {m: {**vars(m)} for m in module.modules()}
    for training in (True, False, True):
        module.train(training)
        results = []
        for call in (module, chain.compute):
            module.load_state_dict(state)
            for m, before in attributes.items():
                if hasattr(m, "calls") and isinstance(m.calls, int):
                    m.calls = before["calls"]
                elif hasattr(m, "calls"):
                    m.calls.zero_()
            results.append(run(call, module, args, kwargs))
        require_same(*results)


def test_a_recording_leaves_default_devices_as_they_are() -> None:
    """Also if a default device is used for the first time in the process while recording."""

    class MakesOnAPlace(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.device("cpu"):
                return super().forward(x) + torch.zeros(3)

    _device_constructors.cache_clear()  # as in a new process
    chain_of(MakesOnAPlace(3, 3))
    with torch.device("meta"):
        made = [torch.zeros(1), torch.ones(1), torch.tensor(1), nn.Linear(1, 1).weight]
    assert all(each.is_meta for each in made)
