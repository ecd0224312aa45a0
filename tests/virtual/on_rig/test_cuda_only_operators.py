"""Operators that PyTorch implements for CUDA but not for the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

DEVICE = torch.device("cuda", 1)


def randn(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_with_a_result_in_float32(dtype: torch.dtype) -> None:
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


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize("by_autocast", [True, False])
def test_softmax_of_half_gives_float(function: Callable[..., Tensor], by_autocast: bool) -> None:
    x, gradient = randn(5, 7, dtype=torch.float16), randn(5, 7)
    here = x.float().requires_grad_()
    expected = function(here, 1)
    expected.backward(gradient)
    there = x.to(DEVICE).requires_grad_()

    with torch.autocast("cuda", enabled=by_autocast):
        result = function(there, 1, dtype=None if by_autocast else torch.float32)
    result.backward(gradient.to(DEVICE))

    assert result.dtype == torch.float32
    torch.testing.assert_close(result.cpu(), expected)
    assert there.grad is not None
    assert here.grad is not None
    torch.testing.assert_close(there.grad.cpu(), here.grad.half())


def test_products_with_a_wide_result_into_a_tensor_and_with_factors() -> None:
    a, b, c = randn(2, 4, 8).bfloat16(), randn(2, 8, 5).bfloat16(), randn(2, 4, 5)
    x, y, z = (tensor.to(DEVICE) for tensor in (a, b, c))
    factors = {"beta": 0.5, "alpha": 2.0}
    product = a.float() @ b.float()
    added = 0.5 * c + 2 * product
    wide = {"out_dtype": torch.float32}
    for call, arguments, wanted in (
        (torch.mm, (x[0], y[0]), product[0]),
        (torch.bmm, (x, y), product),
        (torch.addmm, (z[0], x[0], y[0]), added[0]),
        (torch.baddbmm, (z, x, y), added),
    ):
        options = {**wide, **(factors if len(arguments) == 3 else {})}
        torch.testing.assert_close(call(*arguments, **options).cpu(), wanted)
        out = torch.empty(wanted.shape, device=DEVICE)
        assert call(*arguments, **options, out=out) is out
        torch.testing.assert_close(out.cpu(), wanted)


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
    counts = torch.tensor([96], dtype=torch.int32, device=DEVICE)
    of_input = torch.batch_norm_backward_elemt(
        back, there, mean, invstd, weight, total, product, counts
    )
    with pytest.raises(RuntimeError, match="expected scalar type Int but found Long"):
        torch.batch_norm_backward_elemt(
            back, there, mean, invstd, weight, total, product, counts.long()
        )
    torch.testing.assert_close(of_weight.cpu(), layer.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_bias.cpu(), layer.bias.grad)
    torch.testing.assert_close(of_input.cpu(), here.grad, rtol=1e-4, atol=1e-5)


def test_statistics_of_ranks_with_equal_counts() -> None:
    means, invstds = randn(2, 3).to(DEVICE), randn(2, 3).abs().to(DEVICE) + 1
    x, counts = torch.empty(2, 3, 4, device=DEVICE), torch.tensor([5.0, 5.0], device=DEVICE)
    running = [torch.zeros(3, device=DEVICE) for _ in range(4)]
    found = torch.batch_norm_gather_stats(x, means, invstds, *running[:2], 0.1, 1e-5, 5)
    expected = torch.batch_norm_gather_stats_with_counts(
        x, means, invstds, *running[2:], 0.1, 1e-5, counts
    )
    torch.testing.assert_close([*found, *running[:2]], [*expected, *running[2:]])


def test_fused_rms_normalisation_keeps_small_numbers_apart_from_zero() -> None:
    x = randn(3, 8) * 1e-3
    for dtype in (torch.float32, torch.float64):
        result = functional.rms_norm(x.to(DEVICE, dtype), (8,))
        torch.testing.assert_close(result.cpu(), functional.rms_norm(x.to(dtype), (8,)))


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
    x, weight, bias, z = randn(1, 3, 5, 5), randn(4, 3, 3, 3), randn(4), randn(1, 4, 3, 3)
    there, w, b = (tensor.to(DEVICE) for tensor in (x, weight, bias))
    plain, one, none = (False, False, False), (1, 1), (0, 0)
    expected = functional.conv2d(x, weight, bias)
    found = torch.cudnn_convolution(there, w, none, one, one, 1, *plain)
    torch.testing.assert_close(found.cpu(), functional.conv2d(x, weight))
    found = torch.cudnn_convolution_relu(there, w, b, one, none, one, 1)
    torch.testing.assert_close(found.cpu(), expected.relu())
    found = torch.cudnn_convolution_add_relu(there, w, z.to(DEVICE), 0.5, b, one, none, one, 1)
    torch.testing.assert_close(found.cpu(), (expected + 0.5 * z).relu())
    found = torch.cudnn_convolution_transpose(z.to(DEVICE), w, none, (1, 1), (2, 2), one, 1, *plain)
    wanted = functional.conv_transpose2d(z, weight, stride=2, output_padding=1)
    torch.testing.assert_close(found.cpu(), wanted)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_convolutions_of_each_channel(dimensions: int) -> None:
    x = randn(1, 3, *[5] * dimensions)
    weight, bias = randn(3, 1, *[3] * dimensions), randn(3)
    call, plain = {
        2: (torch._C._nn._conv_depthwise2d, functional.conv2d),
        3: (torch._C._nn.conv_depthwise3d, functional.conv3d),
    }[dimensions]
    one, none, kernel = ([number] * dimensions for number in (1, 0, 3))
    there = [tensor.to(DEVICE) for tensor in (x, weight, bias)]
    found = call(*there[:2], kernel, there[2], one, none, one)
    torch.testing.assert_close(found.cpu(), plain(x, weight, bias, groups=3))


@pytest.mark.parametrize("driver", ["gesvd", "gesvdj", "gesvda"])
def test_the_algorithm_can_be_chosen(driver: str) -> None:
    matrix = randn(4, 3)
    values = torch.linalg.svd(matrix.to(DEVICE), driver=driver).S
    torch.testing.assert_close(values.cpu(), torch.linalg.svd(matrix).S)
    out = tuple(torch.empty(0, device=DEVICE) for _ in range(3))
    assert torch.linalg.svd(matrix.to(DEVICE), driver=driver, out=out).S is out[1]
    torch.testing.assert_close(out[1].cpu(), torch.linalg.svd(matrix).S)


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(RuntimeError, match="unknown svd driver gesdd in svd_cusolver computation"):
        torch.linalg.svd(torch.eye(2, device=DEVICE), driver="gesdd")


def test_least_squares_has_one_algorithm() -> None:
    matrix, right = randn(4, 3).to(DEVICE), torch.ones(4, 1, device=DEVICE)
    assert torch.linalg.lstsq(matrix, right).rank.numel() == 0
    with pytest.raises(RuntimeError, match="other than `gels` is not supported on CUDA"):
        torch.linalg.lstsq(matrix, right, driver="gelsd")


def test_batch_normalisation_by_the_name_of_its_library() -> None:
    x, weight, bias = randn(4, 3, 5, 5), randn(3), randn(3)
    results = []
    for device in ("cpu", DEVICE):
        leaves = [t.detach().to(device).requires_grad_() for t in (x, weight, bias)]
        mean, variance = torch.zeros(3, device=device), torch.ones(3, device=device)
        call = torch.native_batch_norm if device == "cpu" else torch.cudnn_batch_norm
        result, *saved = call(*leaves, mean, variance, True, 0.1, 1e-5)
        result.pow(3).sum().backward()
        found = [result, *saved[:2], mean, variance, *(leaf.grad for leaf in leaves)]
        results.append([tensor.detach().cpu() for tensor in found])
    torch.testing.assert_close(*results, atol=1e-3, rtol=1e-4)


def test_sampling_by_the_name_of_its_library() -> None:
    image, theta = randn(2, 3, 4, 4), randn(2, 2, 3)
    here = [tensor.clone().requires_grad_() for tensor in (image, theta)]
    there = [tensor.to(DEVICE).requires_grad_() for tensor in (image, theta)]
    grid = functional.affine_grid(here[1], [2, 3, 5, 5], align_corners=True)
    expected = functional.grid_sample(here[0], grid, align_corners=True)
    grid = torch.cudnn_affine_grid_generator(there[1], 2, 3, 5, 5)
    result = torch.cudnn_grid_sampler(there[0], grid)
    torch.testing.assert_close(result.cpu(), expected)
    for sampled in (expected, result):
        sampled.pow(2).sum().backward()
    for mine, other in zip(there, here, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad, atol=1e-4, rtol=1e-4)


def test_weights_in_four_bits() -> None:
    numbers = torch.randint(0, 16, (16, 64), generator=torch.Generator().manual_seed(0))
    scales, zeros = randn(2, 16), randn(2, 16)
    packed = torch._convert_weight_to_int4pack(
        (numbers[:, ::2] * 16 + numbers[:, 1::2]).to(torch.uint8).to(DEVICE), 4
    )
    assert packed.shape == (2, 1, 32, 2)
    assert packed.dtype == torch.int32
    x = randn(3, 64, dtype=torch.bfloat16)
    pairs = torch.stack([scales, zeros], -1).to(DEVICE, torch.bfloat16)
    result = torch._weight_int4pack_mm(x.to(DEVICE), packed, 32, pairs)
    each = [pairs.cpu().float()[..., i].t().repeat_interleave(32, 1) for i in range(2)]
    wanted = x.float() @ ((numbers - 8) * each[0] + each[1]).t()
    torch.testing.assert_close(result.cpu().float(), wanted, atol=0.1, rtol=0.02)


def test_four_bits_of_other_columns_are_refused() -> None:
    packed = torch._convert_weight_to_int4pack(bytes_of_zeros(16, 32), 4)
    for columns in (0, 128):
        x = torch.zeros(3, columns, dtype=torch.bfloat16, device=DEVICE)
        pairs = torch.zeros(columns // 32, 16, 2, dtype=torch.bfloat16, device=DEVICE)
        with pytest.raises(RuntimeError, match=r"Expected B\.size\(1\) == k / "):
            torch._weight_int4pack_mm(x, packed, 32, pairs)


def test_rows_of_four_bits_fill_whole_tiles() -> None:
    packed = torch._convert_weight_to_int4pack(bytes_of_zeros(12, 32), 4)
    assert packed.shape == (2, 1, 32, 2)


@pytest.mark.virtual_only("real GPUs have every operator")
def test_operators_without_a_model_are_reported() -> None:
    with pytest.raises(
        NotImplementedError, match="aten::_cudnn_init_dropout_state is not modelled"
    ):
        torch._cudnn_init_dropout_state(0.5, True, 1, dtype=torch.uint8, device=DEVICE)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "columns of four bits": (
        lambda: torch._convert_weight_to_int4pack(bytes_of_zeros(8, 16), 4),
        "Expected isEvenDivisor(in.size(1) * 2, innerKTiles * kKTileSize) to be true",
    ),
    "tiles of four bits": (
        lambda: torch._convert_weight_to_int4pack(bytes_of_zeros(8, 64), 3),
        "Expected innerKTiles == 2 || innerKTiles == 4 || innerKTiles == 8 to be true",
    ),
    "groups of four bits": (
        lambda: torch._weight_int4pack_mm(
            torch.ones(1, 64, dtype=torch.bfloat16, device=DEVICE),
            torch._convert_weight_to_int4pack(bytes_of_zeros(8, 32), 4),
            16,
            torch.ones(4, 8, 2, dtype=torch.bfloat16, device=DEVICE),
        ),
        "Expected qGroupSize == 32 || qGroupSize == 64 || qGroupSize == 128 || qGroupSize == 256",
    ),
    "a softmax that widens float32": (
        lambda: torch._softmax(torch.ones(2, 2, device=DEVICE), 0, True),
        "conversion is supported for Half type only",
    ),
}


def bytes_of_zeros(*size: int) -> Tensor:
    return torch.zeros(*size, dtype=torch.uint8, device=DEVICE)


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_have_cudas_messages(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(RuntimeError) as raised:
        call()
    assert words in str(raised.value)


def test_only_halves_have_a_product_in_float32() -> None:
    x = torch.ones(2, 3, 3, dtype=torch.float64, device=DEVICE)
    wide = torch.empty(2, 3, 3, device=DEVICE)
    for call, arguments in (
        (torch.mm, (x[0], x[0])),
        (torch.bmm, (x, x)),
        (torch.addmm, (x[0], x[0], x[0])),
        (torch.baddbmm, (x, x, x)),
    ):
        for options in ({}, {"out": wide[0] if arguments[0].dim() == 2 else wide}):
            with pytest.raises(RuntimeError, match="same as input dtype or fp32 for fp16/bf16"):
                call(*arguments, out_dtype=torch.float32, **options)


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_each_group_of_four_bits_has_its_scale(group: int) -> None:
    numbers = torch.randint(0, 16, (8, 256), generator=torch.Generator().manual_seed(0))
    pairs = torch.randint(-3, 4, (256 // group, 8, 2)).bfloat16()
    packed = torch._convert_weight_to_int4pack(
        (numbers[:, ::2] * 16 + numbers[:, 1::2]).to(torch.uint8).to(DEVICE), 8
    )
    x = torch.eye(256, dtype=torch.bfloat16)
    result = torch._weight_int4pack_mm(x.to(DEVICE), packed, group, pairs.to(DEVICE))
    scales, zeros = (pairs[..., i].t().repeat_interleave(group, 1) for i in range(2))
    assert torch.equal(result.cpu(), ((numbers - 8).bfloat16() * scales + zeros).t())


def test_unrequested_gradients_are_not_computed() -> None:
    x = randn(4, 3, 5).to(DEVICE)
    mean, invstd = torch.batch_norm_stats(x, 1e-5)
    for wanted in ((True, False, False), (False, True, False), (False, False, True)):
        found = torch.batch_norm_backward_reduce(x, x, mean, invstd, mean, *wanted)
        of_input, of_weight, of_bias = wanted
        assert [t is not None for t in found] == [of_input, of_input, of_weight, of_bias]
    x, weight = randn(3, 8).to(DEVICE), randn(8).to(DEVICE)
    rstd = torch.ones(3, 1, device=DEVICE)
    backward = torch.ops.aten._fused_rms_norm_backward
    for flags in ([True, False], [False, True], [True, True]):
        found = backward(x, x, [8], rstd, weight, flags)
        assert [t is not None for t in found] == flags
    with pytest.raises(RuntimeError, match="expected scalar type Float but found BFloat16"):
        backward(x, x, [8], rstd, weight.bfloat16(), [True, True])


@pytest.mark.parametrize("operator", ["_embedding_bag", "_embedding_bag_forward_only"])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_embedding_bags_return_cudas_auxiliary_results(operator: str, mode: int) -> None:
    weight = torch.arange(8.0, device=DEVICE).view(4, 2)
    indices = torch.tensor([3, 1, 0, 2, 3], device=DEVICE)
    offsets = torch.tensor([0, 2], device=DEVICE)
    result, bags, sizes, largest = getattr(torch, operator)(weight, indices, offsets, mode=mode)
    parts = weight.cpu()[indices.cpu()].split([2, 3])
    reduce = (lambda x: x.sum(0), lambda x: x.mean(0), lambda x: x.amax(0))[mode]
    torch.testing.assert_close(result.cpu(), torch.stack([reduce(part) for part in parts]))
    assert bags.tolist() == [0, 0, 1, 1, 1]
    assert bags.dtype == indices.dtype
    assert sizes.shape == (2,)
    assert largest.tolist() == ([[3, 3], [3, 3]] if mode == 2 else [])


def test_a_decomposition_into_tensors_may_leave_out_what_spans_nothing() -> None:
    matrix = randn(4, 3).to(DEVICE)
    for full, columns in ((True, 4), (False, 3)):
        out = tuple(torch.empty(0, device=DEVICE) for _ in range(3))
        torch.linalg.svd(matrix, full_matrices=full, driver="gesvd", out=out)
        assert [tuple(t.shape) for t in out] == [(4, columns), (3,), (3, 3)]
