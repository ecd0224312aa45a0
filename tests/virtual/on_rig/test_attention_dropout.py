"""What attention drops: masks, the backward pass, and the random numbers behind both."""

from __future__ import annotations

import pytest
import torch
from attention_operands import FUSED, aten, attention_with_dropout_mask, operands
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


@pytest.mark.parametrize(("backend", "dtype"), FUSED)
def test_the_backward_drops_what_the_forward_dropped(
    backend: SDPBackend, dtype: torch.dtype
) -> None:
    q, k, _ = operands(dtype)
    # With the identity as value, the output is the attention after dropout.
    v = torch.eye(24, 16, device="cuda", dtype=dtype).expand(2, 4, 24, 16).contiguous()
    v.requires_grad_()
    with sdpa_kernel([backend]):
        torch.cuda.manual_seed(5)
        output = scaled_dot_product_attention(q, k, v, dropout_p=0.25)
        again = scaled_dot_product_attention(q, k, v, dropout_p=0.25)
        torch.cuda.manual_seed(5)
        same = scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    assert torch.equal(output, same)
    assert not torch.equal(output, again)
    dropped = (output == 0).double().mean().item()
    assert 0.2 < dropped < 0.3
    output.sum().backward()
    # The gradient of value sums the columns of the attention after the same dropout.
    assert v.grad is not None
    torch.testing.assert_close(
        v.grad[:, :, :16, 0].float(), output.detach().float().sum(2), atol=1e-2, rtol=1e-2
    )


def test_packed_sequences_have_the_same_dropout() -> None:
    # So have their heads: PyTorch starts all of them at the same random number.
    torch.manual_seed(0)
    starts = torch.tensor([0, 8, 16], dtype=torch.int32, device="cuda")
    zero = torch.zeros(1, 16, 2, 8, device="cuda")
    value = torch.eye(8, device="cuda").repeat(2, 1)[None, :, None].expand(1, 16, 2, 8)
    call = (zero, zero, value.contiguous(), None, starts, starts, 8, 8, 0.5, 0, True)
    masks = aten._efficient_attention_forward(*call)[0].view(2, 8, 2, 8) != 0
    first = masks[0, :, 0]
    assert 8 < first.sum() < 56
    assert torch.equal(masks, first[None, :, None].expand(2, 8, 2, 8))
    again = aten._efficient_attention_forward(*call)[0].view(2, 8, 2, 8) != 0
    assert not torch.equal(again, masks)


@pytest.mark.filterwarnings("ignore:Dropout mask should only be used for testing")
@pytest.mark.parametrize("causal", [False, True])
def test_flash_returns_its_dropout_mask(causal: bool) -> None:
    tensors = operands(torch.float16)
    output, *_, mask = aten._scaled_dot_product_flash_attention(
        *tensors, 0.25, causal, return_debug_mask=True
    )
    assert mask.shape == (2, 4, 128, 128)
    signs = mask[:, :, :24, :24]
    assert 0.1 < (signs < 0).float().mean().item() < 0.3
    expected = attention_with_dropout_mask(tensors, signs >= 0, causal, 0.25)
    torch.testing.assert_close(output.cpu().double(), expected, atol=1e-2, rtol=1e-2)


def test_dropout_masks_of_packed_sequences() -> None:
    lengths = [3, 5]
    starts = torch.tensor([0, 3, 8], dtype=torch.int32, device="cuda")
    packed = [torch.randn(8, 2, 16, device="cuda", dtype=torch.float16) for _ in range(3)]
    output, *_, mask = aten._flash_attention_forward(
        *packed, starts, starts, 5, 5, 0.25, False, True
    )
    start = 0
    for i, length in enumerate(lengths):
        tensors = [t[start : start + length].transpose(0, 1).unsqueeze(0) for t in packed]
        kept = mask[i : i + 1, :, :length, :length] >= 0
        expected = attention_with_dropout_mask(tensors, kept, False, 0.25)[0].transpose(0, 1)
        given = output[start : start + length].cpu().double()
        torch.testing.assert_close(given, expected, atol=1e-2, rtol=1e-2)
        start += length


@pytest.mark.parametrize("tokens", [24, 7])
def test_random_numbers_of_efficient_dropout(tokens: int) -> None:
    tensors = operands(key_tokens=tokens)
    output, _, seed, offset = aten._scaled_dot_product_efficient_attention(
        *tensors, None, True, 0.25
    )
    numbers = torch.empty(2, 4, 24, tokens, device="cuda")
    torch._fill_mem_eff_dropout_mask_(numbers, 0.25, seed.item(), offset.item())
    expected = attention_with_dropout_mask(tensors, numbers > 0.25, False, 0.25)
    torch.testing.assert_close(output.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    output.backward(torch.ones_like(output))
    exact = [tensor.detach().cpu().double().requires_grad_() for tensor in tensors]
    aten._scaled_dot_product_attention_math(*exact, None, 0.25, False, (numbers > 0.25).cpu())[
        0
    ].sum().backward()
    for tensor, other in zip(tensors, exact, strict=True):
        torch.testing.assert_close(tensor.grad.cpu().double(), other.grad, atol=1e-5, rtol=1e-5)


def test_dropout_numbers_are_consecutive_from_the_offset() -> None:
    numbers = torch.empty(1, 2, 3, 5, device="cuda")
    torch._fill_mem_eff_dropout_mask_(numbers, 0.5, 1234, 6)
    sequence = torch.empty(36, device="cuda")
    torch._fill_mem_eff_dropout_mask_(sequence.view(1, 1, 1, 36), 0.5, 1234, 0)
    assert torch.equal(numbers.flatten(), sequence[6:])
