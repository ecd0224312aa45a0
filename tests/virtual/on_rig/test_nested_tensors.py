"""Nested tensors of both layouts on a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# PyTorch warns once a process that nested tensors are a prototype.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")

DEVICE = torch.device("cuda", 1)
PARTS = (torch.arange(8.0).view(2, 4), torch.arange(12.0).view(3, 4))


def nested(device: torch.device | str, layout: torch.layout = torch.strided) -> torch.Tensor:
    return torch.nested.nested_tensor(list(PARTS), device=device, layout=layout, requires_grad=True)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_layer(layout: torch.layout) -> None:
    linear = torch.nn.Linear(4, 2)
    expected = [linear(part) for part in PARTS]
    results = linear.to(DEVICE)(nested(DEVICE, layout))
    assert results.device == DEVICE
    for result, wanted in zip(results.unbind(), expected, strict=True):
        torch.testing.assert_close(result.cpu(), wanted)


def test_gradient_through_padding() -> None:
    gradients = []
    for device in ("cpu", DEVICE):
        tensor = nested(device)
        result = (functional.relu(tensor) * tensor + tensor).softmax(-1)
        torch.nested.to_padded_tensor(result, 0.0).pow(2).sum().backward()
        assert tensor.grad.device == torch.device(device)
        gradients.append([part.cpu() for part in tensor.grad.unbind()])
    torch.testing.assert_close(*gradients)


def test_moves() -> None:
    tensor = nested("cpu").detach().to(DEVICE)
    assert tensor.device == DEVICE
    for part, wanted in zip(tensor.cpu().unbind(), PARTS, strict=True):
        assert torch.equal(part, wanted)


def test_batched_product_of_ragged_matrices() -> None:
    tensor = nested(DEVICE).detach()
    products = tensor.bmm(tensor.transpose(1, 2))
    for product, part in zip(products.unbind(), PARTS, strict=True):
        torch.testing.assert_close(product.cpu(), part @ part.T)


ROWS = torch.tensor([[[1.0, 2.0, 3.0, 4.0]], [[10.0, 20.0, 30.0, 40.0]]])


@pytest.mark.parametrize("operation", [torch.add, torch.mul])
def test_a_dense_row_for_each_part(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    result = operation(nested(DEVICE), ROWS.to(DEVICE))
    assert result.device == DEVICE
    for given, part, row in zip(result.unbind(), PARTS, ROWS, strict=True):
        assert torch.equal(given.cpu(), operation(part, row))


def test_a_dense_number_for_each_part() -> None:
    parts = [torch.arange(2.0), torch.arange(3.0)]
    tensor = torch.nested.nested_tensor(parts, device=DEVICE)
    result = tensor + torch.tensor([[10.0], [20.0]], device=DEVICE)
    assert [part.tolist() for part in result.unbind()] == [[10, 11], [20, 21, 22]]


def test_unsupported_nested_and_dense_operands() -> None:
    rows = ROWS.to(DEVICE)
    with pytest.raises(RuntimeError, match="Unsupported nested dense elementwise op: sub"):
        nested(DEVICE) - rows
    with pytest.raises(RuntimeError, match="nested self and non-nested other for op: add"):
        nested(DEVICE) + rows[0]
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        nested(DEVICE) + rows.half()
    with pytest.raises(NotImplementedError, match="_nested_op_dense_esuhm"):
        nested(DEVICE).to(torch.complex64) + rows.to(torch.complex64)


def test_random_numbers_are_those_of_the_buffer() -> None:
    torch.cuda.manual_seed_all(0)
    tensor = nested(DEVICE).detach().normal_()
    torch.cuda.manual_seed_all(0)
    numbers = torch.empty(20, device=DEVICE).normal_()
    assert torch.equal(torch.cat([part.flatten() for part in tensor.unbind()]), numbers)


def test_attention_over_jagged_sequences() -> None:
    heads = nested(DEVICE, torch.jagged).unflatten(-1, [2, 2]).transpose(1, 2)
    assert functional.scaled_dot_product_attention(heads, heads, heads).device == DEVICE


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        (SDPBackend.MATH, torch.float32),
        (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
        (SDPBackend.FLASH_ATTENTION, torch.float16),
    ],
)
def test_attention_over_jagged_sequences_is_that_of_each(
    backend: SDPBackend, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    lengths = (3, 5)
    causal = backend != SDPBackend.MATH  # MATH supports no causal mask for nested tensors
    parts = [[torch.randn(length, 2, 16) for length in lengths] for _ in range(3)]
    operands = [
        torch.nested.nested_tensor(
            tensors, device=DEVICE, dtype=dtype, layout=torch.jagged, requires_grad=True
        )
        for tensors in parts
    ]
    with sdpa_kernel(backend):
        result = functional.scaled_dot_product_attention(
            *(operand.transpose(1, 2) for operand in operands), is_causal=causal
        )
    result.values().pow(2).sum().backward()
    within = 2e-2 if dtype == torch.float16 else 1e-4
    for i in range(len(lengths)):
        exact = [tensors[i].transpose(0, 1).clone().requires_grad_() for tensors in parts]
        wanted = functional.scaled_dot_product_attention(*exact, is_causal=causal)
        wanted.pow(2).sum().backward()
        torch.testing.assert_close(
            result.unbind()[i].cpu().float(), wanted, atol=within, rtol=within
        )
        for operand, part in zip(operands, exact, strict=True):
            assert operand.grad is not None
            torch.testing.assert_close(
                operand.grad.unbind()[i].transpose(0, 1).cpu().float(),
                part.grad,
                atol=within,
                rtol=within,
            )


def test_padded_batch_of_a_transformer() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1).to(DEVICE).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]], device=DEVICE)
    with torch.no_grad():  # the fast path, which uses nested tensors
        result = encoder(torch.ones(2, 3, 8, device=DEVICE), src_key_padding_mask=padding)
    assert result.device == DEVICE
    assert result[0, 2].abs().sum().item() == 0


def test_views_in_inference_mode() -> None:
    made_before = nested(DEVICE)
    with torch.inference_mode():
        for tensor in (made_before, nested(DEVICE)):
            view = tensor.view(2, -1, 2, 2)
            assert view.device == DEVICE
            for part, wanted in zip(view.unbind(), PARTS, strict=True):
                assert torch.equal(part.cpu(), wanted.view(-1, 2, 2))
            view.mul_(0)
            assert not tensor.to_padded_tensor(0.0).any().item()


def sequences(
    *lengths: int, heads: int = 2, dtype: torch.dtype = torch.float16, gradient: bool = False
) -> Tensor:
    parts = [torch.randn(heads, length, 16) for length in lengths]
    return torch.nested.nested_tensor(parts, device=DEVICE, dtype=dtype, requires_grad=gradient)


def test_attention_has_gradients() -> None:
    torch.manual_seed(0)
    operands = [sequences(3, 5, gradient=True) for _ in range(3)]
    result = functional.scaled_dot_product_attention(*operands, is_causal=True)
    assert type(result.grad_fn).__name__ == "ScaledDotProductFlashAttentionBackward0"
    torch.nested.to_padded_tensor(result.transpose(1, 2), 0.0).pow(2).sum().backward()
    for i in range(2):
        parts = [operand[i].detach().cpu().float().requires_grad_() for operand in operands]
        wanted = functional.scaled_dot_product_attention(*parts, is_causal=True)
        wanted.pow(2).sum().backward()
        torch.testing.assert_close(result[i].cpu().float(), wanted, atol=5e-3, rtol=5e-3)
        for operand, part in zip(operands, parts, strict=True):
            assert operand.grad is not None
            torch.testing.assert_close(
                operand.grad[i].cpu().float(), part.grad, atol=2e-2, rtol=2e-2
            )


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_attention_of_one_query_to_many_sequences(dtype: torch.dtype) -> None:
    keys, values = sequences(3, 5, heads=1, dtype=dtype), sequences(3, 5, dtype=dtype)
    query = torch.randn(1, 2, 4, 16)
    for given in (
        query.to(DEVICE, dtype),
        torch.nested.nested_tensor([query[0].to(DEVICE, dtype)]),
    ):
        result = functional.scaled_dot_product_attention(given, keys, values)
        assert result.is_nested
        for i in range(2):
            wanted = functional.scaled_dot_product_attention(
                query[0].to(dtype).float(),
                keys[i].cpu().float().expand(2, -1, -1),
                values[i].cpu().float(),
            )
            torch.testing.assert_close(result[i].cpu().float(), wanted, atol=5e-3, rtol=5e-3)


def test_the_choice_of_attention_is_cudas() -> None:
    flash, efficient = 1, 2
    assert torch._fused_sdp_choice(*[sequences(3, 5)] * 3) == flash
    assert torch._fused_sdp_choice(*[sequences(3, 5, dtype=torch.float32)] * 3) == efficient


def test_sums_along_a_dimension_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"aten::sum.dim_IntList.*NestedTensorCUDA"):
        sequences(3, 5).sum(-1, keepdim=True)


def test_layer_norm_has_gradients() -> None:
    gradients = []
    for device in ("cpu", DEVICE):
        norm = torch.nn.LayerNorm(4).to(device)
        tensor = nested(device)
        torch.nested.to_padded_tensor(norm(tensor), 0.0).pow(3).sum().backward()
        of_parts = [part.cpu() for part in tensor.grad.unbind()]
        gradients.append([*of_parts, norm.weight.grad.cpu(), norm.bias.grad.cpu()])
    torch.testing.assert_close(*gradients)
