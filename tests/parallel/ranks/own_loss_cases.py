"""What every rank does in the tests of a custom loss, in `test_distributed.py`."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from pair_of_models import Pair
from torch import Tensor, nn

import anyrig
from anyrig.errors import BatchError


class _Keeping(nn.Module):
    """Keeps a number for each sample, which a loss reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.kept = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x.mean(1, keepdim=True)
        return self.linear(x)


def _batch() -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(7, 3, dtype=torch.float64, generator=numbers)
    return x, torch.randn(7, 2, dtype=torch.float64, generator=numbers)


def _masked_mean(output: Tensor, target: Tensor) -> Tensor:
    mask = (target > 0).double()
    return ((output - target).square() * mask).sum() / mask.sum()


def _communicating(output: Tensor, target: Tensor) -> Tensor:
    """Return a sum over this rank, whose divisor is the same on all ranks."""
    count = torch.tensor(float(len(output)), device=output.device)
    dist.all_reduce(count)
    return (output - target).square().sum() / count


_communicating.reduction = "sum"  # type: ignore[attr-defined]


def case_a_loss_that_does_not_follow_from_its_parts_is_refused() -> None:
    pair = Pair(nn.Linear(3, 2), loss=_masked_mean)
    x, y = (each.to(pair.device) for each in _batch())
    with pytest.raises(BatchError, match=r"_masked_mean of . samples is .* not a mean"):
        pair.model(x[:5], target=y[:5])


def case_a_loss_that_reads_the_module_or_communicates_is_that_of_one_device() -> None:
    for name in ("reads", "communicates"):
        module = _Keeping()

        def reads(output: Tensor, target: Tensor, module: _Keeping = module) -> Tensor:
            return ((output - target) * module.kept).square().mean()

        pair = Pair(module, loss=reads if name == "reads" else _communicating)
        x, y = (each.to(pair.device) for each in _batch())
        rows = [5, 2, *(0 for _ in range(pair.ranks - 2))]
        own, target = pair.mine(rows, x, y)
        whole = pair.model(own, target=target)
        whole.backward()
        output = pair.one(x)
        scale = pair.one.kept if name == "reads" else 1
        factor = 1 if name == "reads" else 2  # elements of a sample
        alone = factor * ((output - y) * scale).square().mean()
        alone.backward()
        torch.testing.assert_close(whole, alone, rtol=1e-9, atol=0)
        pair.assert_same("gradients")
        assert anyrig.explain(pair.model)


class _Masked(nn.Module):
    """Returns a mean over what a mask selects; counts its calls and has a list of them."""

    def __init__(self, divides: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.calls: list[int] = []
        self.divides = divides

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        self.calls.append(len(x))
        mask = (target > 0).to(x.dtype)
        losses = (self.linear(x) - target).square() * mask
        return {"loss": losses.sum() / mask.sum() if self.divides else losses.mean()}


def case_a_number_of_the_module_that_is_no_mean_over_samples_is_refused() -> None:
    def taken(output: dict[str, Tensor], target: Tensor) -> Tensor:
        return output["loss"]

    for accumulate in (False, True):
        pair = Pair(_Masked(divides=True), accumulate=accumulate)
        x, y = (each.to(pair.device) for each in _batch())
        with pytest.raises(BatchError, match=r"_Masked returns a number, .* not a mean"):
            anyrig.spread(pair.module, loss=taken)(x[:5], target=y[:5])
        with pytest.raises(BatchError, match=r"_Masked returns a number \['loss'\].* not a mean"):
            pair.model(x[:5], y[:5])


def case_a_mean_of_the_module_is_computed_again_without_a_trace() -> None:
    module = _Masked(divides=False)
    pair = Pair(module)
    x, y = (each.to(pair.device) for each in _batch())
    for _ in range(2):
        pair.model(x[:5], y[:5])["loss"].backward()
    assert pair.model.module.calls == [5, 5]


class _Relating(nn.Module):
    """Scales its outputs by the largest of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x)
        return output / output.detach().abs().max()


def case_samples_that_a_module_relates_are_refused() -> None:
    pair = Pair(_Relating())
    x, _ = (each.to(pair.device) for each in _batch())
    with pytest.raises(BatchError, match=r"_Relating returns a tensor of shape \(5, 2\).* relates"):
        pair.model(x[:5])
    with torch.no_grad(), pytest.raises(BatchError, match="relates samples"):
        pair.model(x[:5])
    sequences = anyrig.spread(nn.LSTM(3, 2).double().to(pair.device), dim=1)
    assert sequences(x[:, None].repeat(1, 4, 1))[0].shape == (7, 4, 2)


class _WithSteps(_Masked):
    def training_step(self, x: Tensor, target: Tensor) -> Tensor:
        return self(x, target)["loss"]

    def step_of_its_own(self, x: Tensor, target: Tensor) -> Tensor:
        """Compute the gradients, too, as a training loop in a module does."""
        self.zero_grad()
        loss: Tensor = self(x, target)["loss"]
        loss.backward()
        return loss


def case_a_method_that_returns_no_mean_over_samples_is_refused() -> None:
    for divides in (True, False):
        pair = Pair(_WithSteps(divides))
        x, y = (each.to(pair.device) for each in _batch())
        if divides:
            with pytest.raises(BatchError, match=r"_WithSteps returns a number, .* not a mean"):
                pair.model.training_step(x[:5], y[:5])
        else:
            pair.model.training_step(x[:5], y[:5]).backward()
    pair = Pair(_WithSteps(False))
    pair.model.step_of_its_own(x[:5], y[:5])
    assert all(each.grad is not None for each in pair.model.parameters())
