"""Masks, divisions, views and types of tensors that PyTorch changed, in each of their forms."""

from __future__ import annotations

import pytest
from checked_texts import OLD, START, checked, fixed, found, is_safe


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("1 - mask", "~mask"),
        ("1 - (a.t() > 0)", "~(a.t() > 0)"),
        ("1 - mask[0]", "~mask[0]"),
        ("(1 - mask).float()", "(~mask).float()"),
        ("x.masked_fill(mask.byte(), 0)", "x.masked_fill(mask.bool(), 0)"),
        ("x.masked_fill_(y.byte(), 0)", "x.masked_fill_(y.bool(), 0)"),
        ("x.masked_select(y.byte())", "x.masked_select(y.bool())"),
        ("x.masked_scatter(y.byte(), x)", "x.masked_scatter(y.bool(), x)"),
        ("x.masked_scatter_(y.byte(), x)", "x.masked_scatter_(y.bool(), x)"),
        ("x[y.type(torch.ByteTensor)]", "x[y.bool()]"),
        ("x[y.type(torch.uint8)]", "x[y.bool()]"),
        ("x[(a > 0).byte()]", "x[(a > 0).bool()]"),
        ("x[(a > 0).type(torch.uint8)]", "x[(a > 0).bool()]"),
        ("2 - mask", None),
        ("mask - 1", None),
        ("1 + mask", None),
        ("1 - x", None),
        ("x.masked_fill(mask, 0)", None),
        ("x.fill(y.byte())", None),
        ("x[y.type(torch.LongTensor)]", None),
        ("x[y.long()]", None),
    ],
)
def test_masks_are_booleans(before: str, after: str | None) -> None:
    start = f"{START}mask = torch.ones(3) > 0\na = torch.ones(3)\ny = "
    assert len(found(f"{start}{before}\n", "ARC106")) == (after is not None)
    assert fixed(f"{start}{before}\n", "ARC106") == f"{start}{after or before}\n"


def test_a_fix_that_would_lose_a_comment_is_not_made() -> None:
    text = "import torch\ny = 1 - (torch.ones(3) > 0  # it\n    )\n"
    (finding,) = checked(text, "ARC106")
    assert finding.fix is None
    assert fixed(text, "ARC106") == text


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("torch.arange(9) / 3", True),
        ("torch.LongTensor([3]) / torch.LongTensor([3])", True),
        ("torch.argmax(x, 1) / 2", True),
        ("torch.randint(3, (2,)) / 2", True),
        ("torch.randperm(3) / 2", True),
        ("torch.multinomial(x, 3) / 2", True),
        ("torch.topk(x, 3)[1] / 2", True),
        ("torch.ones(3).long() / 2", True),
        ("torch.arange(9) / 3.0", False),
        ("torch.arange(9.0) / 3", False),
        ("torch.arange(9).float() / 3", False),
        ("torch.arange(9) // 3", False),
        ("torch.arange(9) * 3", False),
        ("torch.topk(x, 3)[0] / 2", False),
        ("torch.ones(3) / 2", False),
        ("2 / torch.arange(9)", False),
    ],
)
def test_integers_are_divided(text: str, is_found: bool) -> None:
    assert len(found(f"{OLD}y = {text}\n", "ARC107")) == is_found
    assert found(f"{START}y = {text}\n", "ARC107") == []


@pytest.mark.parametrize(
    ("value", "part", "is_found"),
    [
        ("pred.t().eq(y)", "correct[:k].view(-1)", True),
        ("pred.transpose(0, 1) == y", "correct[:3].view(-1)", True),
        ("pred.t().eq(y).float()", "correct[:3].view(-1)", True),
        ("pred.t().clone()", "correct[1:3].view(-1)", True),
        ("pred.t().contiguous()", "correct[:3].view(-1)", False),
        ("pred.eq(y)", "correct[:3].view(-1)", False),
        ("pred.t().eq(y)", "correct[:1].view(-1)", False),
        ("pred.t().eq(y)", "correct[3].view(-1)", False),
        ("pred.t().eq(y)", "correct[:3].view(-1, 2)", False),
        ("pred.t().eq(y)", "correct[:3].view(6)", False),
        ("pred.t().eq(y)", "correct.view(-1)", False),
        ("pred.t().eq(y)", "correct[:3].reshape(-1)", False),
        ("pred.t(3).eq(y)", "correct[:3].view(-1)", False),
    ],
)
def test_a_part_of_a_transposed_result_is_viewed(value: str, part: str, is_found: bool) -> None:
    assert len(found(f"import torch\ncorrect = {value}\na = {part}\n", "ARC108")) == is_found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("x.view(-1).sum(0)", True),
        ("x.reshape(-1).float().sum(0)", True),
        *((f"x.view(-1).{name}().sum(0)", True) for name in ("double", "long", "int", "cpu")),
        ("x.view(-1).exp().sum(0)", False),
        ("x.view(-1).sum()", False),
        ("x.view(-1).sum(1)", False),
        ("x.view(-1).sum(0, keepdim=True)", False),
        ("x.view(-1, 2).sum(0)", False),
        ("x.view(1).sum(0)", False),
        ("x.sum(0)", False),
    ],
)
def test_the_only_dimension_is_summed(text: str, is_found: bool) -> None:
    assert len(found(f"{OLD}y = {text}\n", "ARC118")) == is_found
    assert found(f"{START}y = {text}\n", "ARC118") == []
    assert not is_safe(f"{OLD}y = {text}\n", "ARC118")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "torch.set_default_tensor_type('torch.HalfTensor')",
            "torch.set_default_dtype(torch.float16)",
        ),
        (
            "torch.set_default_tensor_type(torch.FloatTensor)",
            "torch.set_default_dtype(torch.float32)",
        ),
        (
            "torch.set_default_tensor_type(torch.cuda.FloatTensor)",
            'torch.set_default_dtype(torch.float32); torch.set_default_device("cuda")',
        ),
        (
            "x = torch.set_default_tensor_type('torch.cuda.DoubleTensor')",
            'x = (torch.set_default_dtype(torch.float64), torch.set_default_device("cuda"))',
        ),
        ("torch.set_default_tensor_type(kind)", "torch.set_default_tensor_type(kind)"),
        ("torch.set_default_tensor_type('float')", "torch.set_default_tensor_type('float')"),
    ],
)
def test_a_default_type_becomes_a_dtype_and_a_device(before: str, after: str) -> None:
    assert len(found(f"import torch\n{before}\n", "ARC111")) == 1
    assert fixed(f"import torch\n{before}\n", "ARC111") == f"import torch\n{after}\n"
    assert not is_safe(f"import torch\n{before}\n", "ARC111")


TYPES = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "ByteTensor": "uint8",
    "CharTensor": "int8",
    "ShortTensor": "int16",
    "IntTensor": "int32",
    "LongTensor": "int64",
    "BoolTensor": "bool",
}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *(
            (f"torch.cuda.{kind}([1])", f'torch.tensor([1], dtype=torch.{dtype}, device="cuda")')
            for kind, dtype in TYPES.items()
        ),
        (
            "torch.cuda.FloatTensor(2, 3)",
            'torch.empty(2, 3, dtype=torch.float32, device="cuda")',
        ),
        (
            "torch.cuda.IntTensor([i for i in y])",
            'torch.tensor([i for i in y], dtype=torch.int32, device="cuda")',
        ),
        ("torch.cuda.FloatTensor(x)", None),
        ("torch.cuda.FloatTensor()", None),
        ("torch.cuda.FloatTensor(*x)", None),
        ("torch.cuda.FloatTensor([1], [2])", None),
        ("torch.cuda.FloatTensor([1], device=0)", None),
        ("x.type(torch.cuda.FloatTensor)", None),
    ],
)
def test_a_type_of_cuda_becomes_a_dtype_and_a_device(before: str, after: str | None) -> None:
    assert len(found(f"import torch\ny = {before}\n", "ARC112")) == 1
    assert (
        fixed(f"import torch\ny = {before}\n", "ARC112") == f"import torch\ny = {after or before}\n"
    )


def test_a_type_of_cuda_behind_a_condition_is_right() -> None:
    assert found("import torch\nif gpu:\n    torch.cuda.FloatTensor([1])\n", "ARC112") == []
    assert found("import torch\ntorch.FloatTensor([1])\n", "ARC112") == []
