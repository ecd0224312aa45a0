"""Nested tensors of layout strided in shape-only mode; their sizes are on the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from anyrig.virtual import clock

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def sequences(dtype: torch.dtype) -> Tensor:
    parts = [torch.zeros(2, length, 16) for length in (3, 5)]
    return torch.nested.nested_tensor(parts, device="cuda", dtype=dtype, requires_grad=True)


def test_operators_on_the_parts() -> None:
    tensor = sequences(torch.float32)
    with torch.no_grad():
        result = functional.relu(tensor).clone().transpose(1, 2).contiguous()
        assert result._nested_tensor_size().tolist() == [[3, 2, 16], [5, 2, 16]]
        assert torch.nested.to_padded_tensor(result, 0.0).shape == (2, 5, 2, 16)
        products = (tensor @ tensor.transpose(2, 3)).softmax(-1)
        assert products._nested_tensor_size().tolist() == [[2, 3, 3], [2, 5, 5]]


def test_padding_is_left_out() -> None:
    sizes = torch.tensor([[3, 16], [5, 16]])
    tensor = torch._nested_from_padded(torch.empty(2, 6, 16, device="cuda"), sizes)
    assert tensor.values().shape == (8 * 16,)


def test_attention() -> None:
    query, key, value = (sequences(torch.float16) for _ in range(3))
    result = functional.scaled_dot_product_attention(query, key, value)
    torch.nested.to_padded_tensor(result.transpose(1, 2).contiguous(), 0.0).sum().backward()
    assert query.grad is not None
    assert query.grad._nested_tensor_size().tolist() == [[2, 3, 16], [2, 5, 16]]


def test_layer_norm_has_gradients() -> None:
    norm = torch.nn.LayerNorm(16).cuda()
    tensor = torch.nested.nested_tensor(
        [torch.zeros(length, 16) for length in (3, 5)], device="cuda", requires_grad=True
    )
    torch.nested.to_padded_tensor(norm(tensor), 0.0).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad._nested_tensor_size().tolist() == [[3, 16], [5, 16]]
    assert norm.weight.grad is not None


def test_padding_of_jagged_sequences_has_gradients() -> None:
    tensor = torch.nested.nested_tensor(
        [torch.zeros(length, 16) for length in (3, 5)],
        device="cuda",
        layout=torch.jagged,
        requires_grad=True,
    )
    torch.nested.to_padded_tensor(tensor, 0.0).pow(2).sum().backward()
    assert tensor.grad is not None
    assert tensor.grad.values().shape == (8, 16)


PADDING = torch.tensor([[False, False, False, True], [False, False, True, True]])


def encoder(nested: bool) -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).cuda().eval()


@pytest.mark.parametrize("padding", [None, PADDING])
def test_the_fast_path_of_a_transformer(padding: Tensor | None) -> None:
    tensor = torch.empty(2, 4, 16, device="cuda")
    mask = None if padding is None else padding.cuda()
    with torch.no_grad():
        result = encoder(nested=False)(tensor, src_key_padding_mask=mask)
    assert result.shape == (2, 4, 16)


def test_a_computed_mask_is_assumed_to_keep_every_token() -> None:
    tensor = torch.empty(2, 4, 16, device="cuda")
    result = torch._nested_tensor_from_mask(tensor, torch.empty(2, 4, device="cuda") > 0)
    assert result._nested_tensor_size().tolist() == [[4, 16], [4, 16]]
    with torch.no_grad():
        assert encoder(nested=True)(tensor, src_key_padding_mask=PADDING.cuda()).dim() == 3


def test_a_known_mask_gives_the_lengths() -> None:
    tensor = torch.empty(2, 4, 16, device="cuda")
    kept = (~PADDING).cuda()
    assert torch._nested_tensor_from_mask_left_aligned(tensor, kept)
    assert not torch._nested_tensor_from_mask_left_aligned(tensor, PADDING.cuda())
    result = torch._nested_tensor_from_mask(tensor, kept)
    assert result._nested_tensor_size().tolist() == [[3, 16], [2, 16]]


def memory_bytes(work: Callable[[], object]) -> float:
    before = clock().devices[0].memory_bytes
    work()
    return clock().devices[0].memory_bytes - before


def test_kernels_take_time() -> None:
    padded, bias = torch.empty(2, 6, 48, device="cuda"), torch.empty(48, device="cuda")
    tokens = torch.nested.nested_tensor([torch.zeros(length, 48) for length in (3, 5)]).cuda()
    scores = torch.empty(2, 4, 6, 6, device="cuda")
    mask = torch.empty(2, 6, dtype=torch.bool, device="cuda")
    offsets = torch.tensor([0, 3, 8]).cuda()
    sizes = torch.tensor([[3, 48], [5, 48]])
    assert memory_bytes(lambda: torch._transform_bias_rescale_qkv(padded, bias, 4)) == 4 * (
        2 * 2 * 6 * 48 + 48
    )
    # Each sequence counts with the longest one's length.
    assert memory_bytes(lambda: torch._transform_bias_rescale_qkv(tokens, bias, 4)) == 4 * (
        8 * 48 + 2 * 5 * 48 + 48
    )
    assert memory_bytes(lambda: torch._masked_softmax(scores, mask, 3, 1)) == 4 * 2 * 288 + 12
    jagged = torch.ops.aten._padded_dense_to_jagged_forward
    assert memory_bytes(lambda: jagged(padded, [offsets], 8)) == 4 * 2 * 8 * 48
    assert memory_bytes(lambda: torch._nested_from_padded(padded, sizes)) == 4 * 2 * 8 * 48


def test_a_mask_has_one_of_three_types() -> None:
    scores = torch.empty(2, 2, 3, 3, device="cuda")
    mask = torch.zeros(2, 3, dtype=torch.bool, device="cuda")
    for mask_type in (0, 1, 2):
        assert torch._masked_softmax(scores, mask, 3, mask_type).shape == scores.shape
    for mask_type, words in ((3, "should be 0"), (-1, "should be 0"), (None, "should be defined")):
        with pytest.raises(RuntimeError, match=f"Mask Type {words}"):
            torch._masked_softmax(scores, mask, 3, mask_type)
    with pytest.raises(RuntimeError, match="Mask should be a boolean tensor"):
        torch._masked_softmax(scores, mask.int(), 3, 1)


def test_the_tokens_of_jagged_sequences_may_be_given() -> None:
    padded, offsets = torch.empty(2, 5, 16, device="cuda"), torch.tensor([0, 3, 8], device="cuda")
    jagged = torch.ops.aten._padded_dense_to_jagged_forward
    assert jagged(padded, [offsets], 7).shape == (7, 16)
    assert jagged(padded, [offsets]).shape == (8, 16)


def test_a_row_for_each_part_is_read_and_the_parts_read_and_written() -> None:
    parts = [torch.zeros(length, 16) for length in (3, 5)]
    tensor = torch.nested.nested_tensor(parts, device="cuda")
    row = torch.zeros(2, 1, 16, device="cuda")
    for call in (torch.add, torch.mul):
        assert memory_bytes(lambda call=call: call(tensor, row)) == 4 * 16 * (8 + 8 + 2)
