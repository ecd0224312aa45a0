"""cuDNN attention of sequences of several lengths, in both layouts of nested tensors."""

import sys

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

LENGTHS = [5, 33, 2]
HEADS, NUMBERS = 4, 32
SHAPE_ONLY = "shapes" in sys.argv

torch.manual_seed(0)


def sequences() -> list[Tensor]:
    return [
        torch.randn(length, HEADS, NUMBERS, device="cuda", dtype=torch.float16)
        for length in LENGTHS
    ]


def packed() -> None:
    """Call the operator for packed sequences."""
    query, key, value = (torch.cat(sequences()) for _ in range(3))
    ends = torch.tensor([0, 5, 38, 40], dtype=torch.int32, device="cuda")
    before = torch.cuda.memory_allocated()
    results = torch.ops.aten._cudnn_attention_forward(
        query, key, value, None, ends, ends, 33, 33, True, 0.0, True, False
    )
    output, logsumexp, query_ends, key_ends, longest, *_ = results
    assert (output.shape, output.dtype) == ((40, HEADS, NUMBERS), torch.float16)
    assert (logsumexp.shape, logsumexp.dtype) == ((40, HEADS, 1), torch.float32)
    assert longest == 33
    assert query_ends.shape == key_ends.shape == (4,)
    assert torch.cuda.memory_allocated() - before == 40 * HEADS * NUMBERS * 2 + 1024 + 2 * 512


def nested(layout: torch.layout, is_causal: bool) -> None:
    operands = [sequences() for _ in range(3)]
    leaves = [
        torch.nested.nested_tensor(each, layout=layout, requires_grad=True) for each in operands
    ]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        result = scaled_dot_product_attention(
            *(leaf.transpose(1, 2) for leaf in leaves), is_causal=is_causal
        )
    parts = [part.transpose(0, 1) for part in result.unbind()]
    sum(part.float().sin().sum() for part in parts).backward()
    for i in range(len(LENGTHS)):
        alone = [each[i].detach().float().requires_grad_() for each in operands]
        wanted = scaled_dot_product_attention(
            *(each.transpose(0, 1) for each in alone), is_causal=is_causal
        ).transpose(0, 1)
        torch.testing.assert_close(parts[i].float(), wanted, atol=2e-3, rtol=2e-3)
        wanted.sin().sum().backward()
        for leaf, each in zip(leaves, alone, strict=True):
            found = leaf.grad.unbind()[i].float()
            torch.testing.assert_close(found, each.grad, atol=5e-3, rtol=5e-3)


packed()
if not SHAPE_ONLY:
    for layout in (torch.strided, torch.jagged):
        for is_causal in (False, True):
            nested(layout, is_causal)
print("attended")
