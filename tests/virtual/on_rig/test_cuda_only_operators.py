"""Operators that PyTorch has for CUDA and not for the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

DEVICE = torch.device("cuda", 1)


def randn(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_narrow_numbers_with_a_wide_result(dtype: torch.dtype) -> None:
    a, b = randn(2, 4, 8, dtype=dtype), randn(2, 8, 5, dtype=dtype)
    c = randn(2, 4, 5)
    wide = torch.float32
    there = [tensor.to(DEVICE) for tensor in (a, b, c)]
    x, y, z = there
    expected = a.float() @ b.float()
    for result, wanted in (
        (torch.mm(x[0], y[0], out_dtype=wide), expected[0]),
        (torch.bmm(x, y, out_dtype=wide), expected),
        (torch.addmm(z[0], x[0], y[0], out_dtype=wide), expected[0] + c[0]),
        (torch.baddbmm(z, x, y, out_dtype=wide), expected + c),
    ):
        assert result.device == DEVICE
        torch.testing.assert_close(result.cpu(), wanted)


def test_a_narrower_result_is_refused() -> None:
    x = torch.ones(2, 2, device=DEVICE)
    with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype or fp32"):
        torch.mm(x, x, out_dtype=torch.float16)


def test_statistics_of_batches_on_several_ranks_are_those_of_all() -> None:
    x, gradient = randn(6, 3, 4, 4), randn(6, 3, 4, 4) + 1
    layer = torch.nn.BatchNorm2d(3)
    torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
    here = x.clone().requires_grad_()
    expected = layer(here)
    expected.backward(gradient)

    there, weight = x.to(DEVICE), layer.weight.detach().to(DEVICE)
    ranks = [torch.batch_norm_stats(part, 1e-5) for part in (there[:2], there[2:])]
    means, invstds = (torch.stack(column) for column in zip(*ranks, strict=True))
    running_mean, running_var = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        there,
        means,
        invstds,
        running_mean,
        running_var,
        0.1,
        1e-5,
        torch.tensor([32.0, 64.0], device=DEVICE),
    )
    result = torch.batch_norm_elemt(
        there, weight, torch.zeros(3, device=DEVICE), mean, invstd, 1e-5
    )
    torch.testing.assert_close(result.cpu(), expected.detach())
    torch.testing.assert_close(running_mean.cpu(), layer.running_mean)
    torch.testing.assert_close(running_var.cpu(), layer.running_var)

    back = gradient.to(DEVICE)
    total, product, of_weight, of_bias = torch.batch_norm_backward_reduce(
        back, there, mean, invstd, weight, True, True, True
    )
    of_input = torch.batch_norm_backward_elemt(
        back, there, mean, invstd, weight, total, product, torch.tensor([96], device=DEVICE)
    )
    torch.testing.assert_close(of_weight.cpu(), layer.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_bias.cpu(), layer.bias.grad)
    torch.testing.assert_close(of_input.cpu(), here.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(8,), (4, 8)])
def test_fused_rms_normalisation(shape: tuple[int, ...]) -> None:
    results = []
    for device in ("cpu", DEVICE):
        x = randn(3, 4, 8).to(device).requires_grad_()
        weight = randn(*shape).to(device).requires_grad_()
        result = functional.rms_norm(x, shape, weight)
        result.backward(torch.ones_like(result))
        results.append([t.detach().cpu() for t in (result, x.grad, weight.grad)])
    assert result.grad_fn.name() == "FusedRmsNormBackward0"
    torch.testing.assert_close(*results)


def test_dropout_with_its_mask() -> None:
    result, mask = torch._fused_dropout(torch.ones(1000, device=DEVICE), 0.75)
    assert mask.dtype == torch.uint8
    torch.testing.assert_close(result, mask / 0.75)
    assert torch.equal(torch._masked_scale(result, mask, 2.0), result * 2)


def test_convolutions_by_the_name_of_their_library() -> None:
    x, weight = randn(1, 3, 5, 5), randn(4, 3, 3, 3)
    result = torch.cudnn_convolution(
        x.to(DEVICE), weight.to(DEVICE), (0, 0), (1, 1), (1, 1), 1, False, False, False
    )
    torch.testing.assert_close(result.cpu(), functional.conv2d(x, weight))


@pytest.mark.parametrize("driver", ["gesvd", "gesvdj", "gesvda"])
def test_a_card_lets_the_algorithm_be_chosen(driver: str) -> None:
    matrix = randn(4, 3)
    values = torch.linalg.svd(matrix.to(DEVICE), driver=driver).S
    torch.testing.assert_close(values.cpu(), torch.linalg.svd(matrix).S)


def test_a_card_has_one_algorithm_for_least_squares() -> None:
    matrix, right = randn(4, 3).to(DEVICE), torch.ones(4, 1, device=DEVICE)
    assert torch.linalg.lstsq(matrix, right).rank.numel() == 0
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        torch.linalg.lstsq(matrix, right, driver="gelsd")
