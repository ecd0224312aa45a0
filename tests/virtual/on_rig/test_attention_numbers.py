"""Results and gradients of the attention operators, compared with the plain formula in float64."""

from __future__ import annotations

import warnings

import pytest
import torch
from attention_operands import CUDNN, FLASH, FUSED, MATH, TOLERANCE, aten, compare, operands
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("backend", "dtype"), FUSED)
def test_results_and_gradients(backend: SDPBackend, dtype: torch.dtype, causal: bool) -> None:
    def call(*tensors: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([backend] if tensors[0].is_cuda else [MATH]):
            return scaled_dot_product_attention(*tensors, is_causal=causal, scale=0.3)

    compare(call, operands(dtype))


def test_half_precision_gradients_are_summed_in_float32() -> None:
    """A sum that is rounded after each of the many key blocks has a larger error."""
    torch.manual_seed(0)
    shapes = [(1, 1, 512, 16), (1, 1, 4096, 16), (1, 1, 4096, 16)]
    tensors = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for shape in shapes
    ]
    exact = [tensor.detach().cpu().double().requires_grad_() for tensor in tensors]
    gradient = torch.randn(shapes[0], dtype=torch.bfloat16)
    with sdpa_kernel([FLASH]):
        output = scaled_dot_product_attention(*tensors)
    with sdpa_kernel([MATH]):
        expected_output = scaled_dot_product_attention(*exact)
    output.backward(gradient.cuda())
    expected_output.backward(gradient.double())
    for tensor, other in zip(tensors, exact, strict=True):
        assert tensor.grad is not None
        error = (tensor.grad.cpu().double() - other.grad).norm() / other.grad.norm()
        # 0.0017 from rounding the results, 0.0026 on an H100, which also rounds the attention;
        # rounding after each block gives 0.0037 or more.
        assert error < 0.003


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("key_tokens", [9, 40])
def test_non_square_causal_mask(key_tokens: int, dtype: torch.dtype) -> None:
    compare(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
        operands(dtype, key_tokens=key_tokens),
    )


@pytest.mark.parametrize(("backend", "dtype"), [FUSED[1], FUSED[2]])
def test_grouped_query_heads(backend: SDPBackend, dtype: torch.dtype) -> None:
    def call(*tensors: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel([backend] if tensors[0].is_cuda else [MATH]):
            return scaled_dot_product_attention(*tensors, enable_gqa=True)

    compare(call, operands(dtype, key_heads=2))


def test_gradient_of_the_bias() -> None:
    bias = torch.randn(2, 4, 24, 24, device="cuda", requires_grad=True)
    compare(lambda q, k, v, mask: scaled_dot_product_attention(q, k, v, mask), [*operands(), bias])


def test_fully_masked_rows_are_zero() -> None:
    q, k, v = operands()
    mask = torch.ones(24, 24, dtype=torch.bool, device="cuda")
    mask[3] = False
    output = scaled_dot_product_attention(q, k, v, mask)
    assert output[:, :, 3].abs().max() == 0
    output.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()
    assert q.grad[:, :, 3].abs().max() == 0


def test_logsumexp() -> None:
    q, k, v = operands()
    scores = (q @ k.transpose(-1, -2)).double() / 4
    sums = aten._scaled_dot_product_efficient_attention(q, k, v, None, True)[1]
    assert sums.shape == (2, 4, 32)  # rows are rounded up to a multiple of 32
    torch.testing.assert_close(sums[..., :24].double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)
    assert aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[1].numel() == 0
    half = [tensor.detach().half() for tensor in (q, k, v)]
    sums = aten._scaled_dot_product_flash_attention(*half)[1]
    torch.testing.assert_close(sums.double(), scores.logsumexp(-1), atol=1e-2, rtol=1e-2)


def test_heads_are_padded_to_a_multiple_of_eight() -> None:
    q = torch.randn(1, 2, 5, 12, device="cuda", dtype=torch.float16, requires_grad=True)
    output = scaled_dot_product_attention(q, q, q)
    assert output.shape == q.shape
    assert output.stride() == (2 * 5 * 16, 5 * 16, 16, 1)
    output.sum().backward()
    assert q.grad is not None
    assert q.grad.shape == q.shape


def test_packed_sequences() -> None:
    torch.manual_seed(0)
    lengths = [3, 8, 5]
    starts = torch.tensor([0, 3, 11, 16], dtype=torch.int32, device="cuda")
    packed = [
        torch.randn(16, 4, 16, device="cuda", dtype=torch.float16, requires_grad=True)
        for _ in range(3)
    ]
    output = varlen_attn(*packed, starts, starts, 8, 8, window_size=(-1, 0))
    exact = [tensor.detach().cpu().double().requires_grad_() for tensor in packed]
    parts = [
        scaled_dot_product_attention(*(part.transpose(0, 1) for part in sequence), is_causal=True)
        for sequence in zip(*(tensor.split(lengths) for tensor in exact), strict=True)
    ]
    expected = torch.cat([part.transpose(0, 1) for part in parts])
    torch.testing.assert_close(output.cpu().double(), expected, atol=1e-2, rtol=1e-2)
    output.sum().backward()
    expected.sum().backward()
    for tensor, other in zip(packed, exact, strict=True):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad.cpu().double(), other.grad, atol=2e-2, rtol=1e-2)


def test_packed_sequences_of_the_efficient_operator() -> None:
    torch.manual_seed(0)
    starts = torch.tensor([0, 3, 11], dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn(1, 11, 2, 8, device="cuda") for _ in range(3))
    output, sums, *_ = aten._efficient_attention_forward(
        q, k, v, None, starts, starts, 8, 8, 0.0, 2, True
    )
    assert sums.shape == (2, 2, 32)
    expected = scaled_dot_product_attention(
        *(tensor[:, 3:].transpose(1, 2) for tensor in (q, k, v)), is_causal=True
    )
    torch.testing.assert_close(output[:, 3:].transpose(1, 2), expected, atol=1e-5, rtol=1e-5)


def test_a_window() -> None:
    q, k, v = (tensor.detach().half().transpose(1, 2) for tensor in operands())
    options = (None, None, 24, 24, 0.0, True, False)
    output = aten._flash_attention_forward(q, k, v, *options, window_size_left=4)[0]
    position = torch.arange(24, device="cuda")
    distance = position[:, None] - position[None]
    seen = (distance >= 0) & (distance <= 4)
    wide = [tensor.transpose(1, 2).double() for tensor in (q, k, v)]
    with sdpa_kernel(MATH):
        expected = scaled_dot_product_attention(*wide, attn_mask=seen)
    torch.testing.assert_close(output.transpose(1, 2).double(), expected, atol=1e-2, rtol=1e-2)
    slopes = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="This flash attention build does not support alibi"):
        aten._flash_attention_forward(q, k, v, *options, alibi_slopes=slopes)


def test_autocast_selects_the_fastest_backend() -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = scaled_dot_product_attention(*operands())
    assert output.dtype == torch.bfloat16
    fastest = "Cudnn" if torch.cuda.get_device_capability() >= (9, 0) else "Flash"
    assert type(output.grad_fn).__name__ == f"ScaledDotProduct{fastest}AttentionBackward0"


def test_operands_on_two_devices() -> None:
    q, k, v = (tensor.detach() for tensor in operands())
    with pytest.raises(
        RuntimeError,
        match="Expected all tensors to be on the same device, but got key is on cuda:1, different "
        r"from other tensors on cuda:0 \(when checking argument in method "
        r"wrapper_CUDA___scaled_dot_product_efficient_attention\)",
    ):
        aten._scaled_dot_product_efficient_attention(q, k.to("cuda:1"), v, None, False)


def test_public_checks() -> None:
    q, k, v = (tensor.detach().half() for tensor in operands())
    params = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, False, False)
    assert torch.backends.cuda.is_flash_attention_available()
    assert torch.backends.cuda.can_use_flash_attention(params)
    assert torch.backends.cuda.can_use_efficient_attention(params)
    assert torch.backends.cuda.can_use_cudnn_attention(params)
    wide = torch.backends.cuda.SDPAParams(q.float(), k.float(), v.float(), None, 0.0, False, False)
    assert not torch.backends.cuda.can_use_flash_attention(wide)
    assert torch.backends.cuda.can_use_efficient_attention(wide)


def test_all_backends_disabled() -> None:
    with (
        sdpa_kernel([]),
        pytest.raises(RuntimeError, match="No viable backend for scaled_dot_product_attention"),
    ):
        scaled_dot_product_attention(*operands())


def test_multi_head_attention_in_inference() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    on_gpu = nn.MultiheadAttention(32, 4, batch_first=True).eval().cuda()
    on_gpu.load_state_dict(module.state_dict())
    with torch.no_grad():
        for options in (
            {"need_weights": False},
            {"need_weights": True},
            {"need_weights": False, "key_padding_mask": padding},
        ):
            gpu_options = {
                name: value.cuda() if isinstance(value, torch.Tensor) else value
                for name, value in options.items()
            }
            expected, weights = module(x, x, x, **options)
            output, gpu_weights = on_gpu(x.cuda(), x.cuda(), x.cuda(), **gpu_options)
            torch.testing.assert_close(output.cpu(), expected, atol=1e-5, rtol=1e-5)
            if weights is not None:
                torch.testing.assert_close(gpu_weights.cpu(), weights, atol=1e-5, rtol=1e-5)


def test_encoder_in_inference() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        expected = encoder(x)
        with torch.profiler.profile(acc_events=True) as profile:
            output = encoder.cuda()(x.cuda())
    torch.testing.assert_close(output.cpu(), expected, atol=1e-5, rtol=1e-5)
    names = {event.name for event in profile.events()}
    assert {"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"} <= names
    assert "aten::_scaled_dot_product_efficient_attention" in names


def test_flex_attention_without_compilation() -> None:
    q, k, v = (tensor.detach() for tensor in operands())
    block_mask = create_block_mask(lambda b, h, i, j: i >= j, 2, 4, 24, 24, device="cuda")
    with pytest.warns(UserWarning, match="flex_attention called without torch.compile"):
        output = flex_attention(q, k, v, block_mask=block_mask)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nested_tensors(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(length, 64, device="cuda", dtype=dtype) for length in (3, 5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that nested tensors are a prototype
        nested = torch.nested.nested_tensor(parts)
    heads = nested.view(2, -1, 4, 16).transpose(1, 2)
    results = scaled_dot_product_attention(heads, heads, heads).unbind()
    for part, result in zip(parts, results, strict=True):
        alone = part.double().view(1, -1, 4, 16).transpose(1, 2)
        with sdpa_kernel(MATH):
            expected = scaled_dot_product_attention(alone, alone, alone)[0]
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


def test_encoder_skips_padding() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 32)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that nested tensors are a prototype
        expected = encoder(x, src_key_padding_mask=padding)
        output = encoder.cuda()(x.cuda(), src_key_padding_mask=padding.cuda())
    torch.testing.assert_close(output.cpu(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", [FLASH, CUDNN])
def test_half_precision_gradients_over_many_keys(backend: SDPBackend) -> None:
    torch.manual_seed(0)
    size = (1, 2, 2048, 16)
    tensors = [
        torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    ]
    exact = [tensor.detach().cpu().float().requires_grad_() for tensor in tensors]
    with sdpa_kernel([backend]):
        output = scaled_dot_product_attention(*tensors)
    expected_output = scaled_dot_product_attention(*exact)
    gradient = torch.randn(size)
    output.backward(gradient.to(output))
    expected_output.backward(gradient.bfloat16().float())
    for tensor, other in zip(tensors, exact, strict=True):
        assert tensor.grad is not None
        assert other.grad is not None
        # A GPU rounds the factors to bfloat16 (8 significant bits), and the sum once.
        largest = other.grad.abs().max()
        assert (tensor.grad.cpu().float() - other.grad).abs().max() < largest / 128
