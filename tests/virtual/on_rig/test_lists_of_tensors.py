"""Operators on lists of tensors (`torch._foreach_*`), used by optimizers and clipping."""

from __future__ import annotations

import pytest
import torch

DEVICE = torch.device("cuda", 1)


def test_tensors_of_several_devices_are_processed_one_by_one() -> None:
    tensors = [torch.ones(2, device="cuda:0"), torch.ones(2, device=DEVICE)]
    results = torch._foreach_add(tensors, tensors)
    assert [t.device for t in results] == [t.device for t in tensors]
    torch._foreach_mul_(tensors, 3.0)
    assert [t.sum().item() for t in tensors] == [6, 6]
    norms = torch._foreach_norm(tensors)
    assert [t.device for t in norms] == [t.device for t in tensors]


@pytest.mark.gpus(2)
def test_a_pair_on_two_devices_is_refused() -> None:
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        torch._foreach_add([torch.ones(2, device="cuda:0")], [torch.ones(2, device=DEVICE)])


def test_clipping_gradients_of_several_devices() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2, device=device)) for device in ("cuda:0", DEVICE)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    assert torch.nn.utils.clip_grad_norm_(parameters, 1.0).item() == pytest.approx(2)
    assert parameters[1].grad.device == DEVICE


@pytest.mark.parametrize("how", ["fused", "foreach"])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_optimizers_step_as_on_the_cpu(
    optimizer: type[torch.optim.Optimizer], options: dict[str, object], how: str
) -> None:
    if optimizer is torch.optim.Adagrad and how == "fused" and torch.__version__ < (2, 12):
        pytest.skip("before 2.12 CUDA has no fused Adagrad")
    weights = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).to(device)
        steps = optimizer(model.parameters(), lr=0.1, **options, **{how: True})
        for _ in range(3):
            steps.zero_grad()
            model(torch.ones(2, 4, device=device)).pow(2).sum().backward()
            steps.step()
        weights.append(model.weight.detach().cpu())
    torch.testing.assert_close(*weights)


def test_a_fused_step_unscales_gradients() -> None:
    model = torch.nn.Linear(4, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    with torch.autocast("cuda"):
        loss = model(torch.ones(2, 4, device=DEVICE)).sum()
    scaler.scale(loss).backward()
    before = model.weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, model.weight)


def test_writing_to_a_list_raises_the_versions_that_autograd_compares() -> None:
    tensors = [torch.ones(2, device=DEVICE), torch.ones(3, device=DEVICE)]
    torch._foreach_add_(tensors, 1)
    assert [t._version for t in tensors] == [1, 1]
    torch._foreach_add(tensors, tensors)
    assert [t._version for t in tensors] == [1, 1]
    w = torch.ones(2, device=DEVICE, requires_grad=True)
    product = w * tensors[0]
    torch._foreach_mul_(tensors, 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_absolute_values_of_bools() -> None:
    truths = torch.tensor([True, False], device=DEVICE)
    others = [torch.tensor([-2.0], device=DEVICE), torch.tensor([3], device=DEVICE).byte()]
    results = torch._foreach_abs([truths, *others])
    assert [t.dtype for t in results] == [torch.bool, torch.float32, torch.uint8]
    assert [t.tolist() for t in results] == [[True, False], [2.0], [3]]
    torch._foreach_abs_([truths])
    assert truths.tolist() == [True, False]
