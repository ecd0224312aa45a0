"""Compute cuDNN attention of packed sequences and of both layouts of nested tensors."""

import sys
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# From PyTorch 2.15 on, cuDNN takes jagged tensors only if a sequence is longer than 128.
LENGTHS, SHORT = [5, 133, 2], [5, 128, 2]
TOTAL, LONGEST = sum(LENGTHS), max(LENGTHS)
HEADS, HEAD_SIZE = 4, 32
SHAPE_ONLY = "shapes" in sys.argv

torch.manual_seed(0)


def sequences(lengths: list[int] = LENGTHS) -> list[Tensor]:
    return [
        torch.randn(length, HEADS, HEAD_SIZE, device="cuda", dtype=torch.float16)
        for length in lengths
    ]


def check_packed() -> None:
    """Check the operator on packed sequences: shapes and memory."""
    query, key, value = (torch.cat(sequences()) for _ in range(3))
    ends = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32, device="cuda")
    before = torch.cuda.memory_allocated()
    results = torch.ops.aten._cudnn_attention_forward(
        query, key, value, None, ends, ends, LONGEST, LONGEST, True, 0.0, True, False
    )
    output, logsumexp, query_ends, key_ends, longest, *_ = results
    assert (output.shape, output.dtype) == ((TOTAL, HEADS, HEAD_SIZE), torch.float16)
    assert (logsumexp.shape, logsumexp.dtype) == ((TOTAL, HEADS, 1), torch.float32)
    assert longest == LONGEST
    assert query_ends.shape == key_ends.shape == (4,)
    allocated = torch.cuda.memory_allocated() - before
    assert allocated == TOTAL * HEADS * HEAD_SIZE * 2 + 2560 + 2 * 512


def check_nested(layout: torch.layout, is_causal: bool) -> None:
    """Compare cuDNN attention of nested tensors with attention of each sequence alone."""
    operands = [sequences() for _ in range(3)]
    leaves = [
        torch.nested.nested_tensor(operand, layout=layout, requires_grad=True)
        for operand in operands
    ]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        result = scaled_dot_product_attention(
            *(leaf.transpose(1, 2) for leaf in leaves), is_causal=is_causal
        )
    parts = [part.transpose(0, 1) for part in result.unbind()]
    sum(part.float().sin().sum() for part in parts).backward()
    for i in range(len(LENGTHS)):
        one_sequence = [operand[i].detach().float().requires_grad_() for operand in operands]
        expected = scaled_dot_product_attention(
            *(tensor.transpose(0, 1) for tensor in one_sequence),
            is_causal=is_causal,
        ).transpose(0, 1)
        torch.testing.assert_close(parts[i].float(), expected, atol=2e-3, rtol=2e-3)
        expected.sin().sum().backward()
        for leaf, tensor in zip(leaves, one_sequence, strict=True):
            gradient = leaf.grad.unbind()[i].float()
            torch.testing.assert_close(gradient, tensor.grad, atol=5e-3, rtol=5e-3)


def check_short() -> None:
    """Check that PyTorch 2.14 and later refuse cuDNN's attention for short jagged sequences."""
    short = torch.nested.nested_tensor(sequences(SHORT), layout=torch.jagged).transpose(1, 2)
    refused = False
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            scaled_dot_product_attention(short, short, short)
    except RuntimeError as error:
        refused = "No viable backend" in str(error)
    assert refused is (torch.__version__ >= (2, 14))


check_packed()
if not SHAPE_ONLY:
    for layout in (torch.strided, torch.jagged):
        for is_causal in (False, True):
            check_nested(layout, is_causal)
    check_short()
print("attended")
