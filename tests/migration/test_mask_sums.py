"""Sums and differences of masks, which counted while comparisons gave bytes."""

from __future__ import annotations

import pytest
from checked_texts import OLD, START, checked, fixed, found, is_safe, messages

TENSORS = "a, b, x = torch.ones(3), torch.ones(3), torch.ones(3)\nm, n = a > 0, a.eq(b)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("((a == b) + (b == 1)) == 2", "((a == b).byte() + (b == 1).byte()) == 2"),
        ("m + n == 2", "m.byte() + n.byte() == 2"),
        ("2 == m + n", "2 == m.byte() + n.byte()"),
        ("m + n > 1", "m.byte() + n.byte() > 1"),
        ("1 >= m + n", "1 >= m.byte() + n.byte()"),
        ("(m + a.eq(1)).ge(2)", "(m.byte() + a.eq(1).byte()).ge(2)"),
        ("torch.eq(m + n, 2)", "torch.eq(m.byte() + n.byte(), 2)"),
        ("(m + n).view(-1).data == 2", "(m.byte() + n.byte()).view(-1).data == 2"),
        ("m + n + (a == b) == 3", "m.byte() + n.byte() + (a == b).byte() == 3"),
        ("m + n * (a == b) == 2", "m.byte() + n.byte() * (a == b).byte() == 2"),
        ("~m + n == 2", "(~m).byte() + n.byte() == 2"),
        ("(~m) + n == 2", "(~m).byte() + n.byte() == 2"),
        ("n + ((a - b > 0)) == 2", "n.byte() + ((a - b > 0).byte()) == 2"),
        ("m + (c == d) == 2", "m.byte() + (c == d) == 2"),
        ("m[0] + n[0] == 2", "m[0].byte() + n[0].byte() == 2"),
        ("(a < 2) + (a > 1) == 2", "(a < 2).byte() + (a > 1).byte() == 2"),
        ("m - n", "m.byte() - n.byte()"),
        ("(m + n) - (a == b)", "(m.byte() + n.byte()) - (a == b).byte()"),
        ("m + n", None),
        ("x[m + n]", None),
        ("(m + n) > 0", None),
        ("(m + n) >= 1", None),
        ("m + n == 3", None),  # of two masks, never true
        ("(m + n) != 0", None),
        ("(m + n) == 1", None),
        ("(m + n).sum()", None),
        ("(m * n) == 1", None),
        ("m * n == 2", None),
        ("(c == d) + (e == f) == 2", None),
        ("m.byte() + n == 2", None),
        ("m.long() + n.long() == 2", None),
        ("x + m == 2", None),
        ("m - x", None),
        ("m - (c == d)", None),
        ("(c is d) + m == 2", None),
        ("((a == 1) + (a == 2)) == 2", None),
        ("((a < -1) + (a > 1)) == 2", None),
    ],
)
def test_masks_are_counted(before: str, after: str | None) -> None:
    start = f"{START}{TENSORS}y = "
    assert len(found(f"{start}{before}\n", "ARC120")) == (after is not None)
    assert fixed(f"{start}{before}\n", "ARC120") == f"{start}{after or before}\n"


@pytest.mark.parametrize(
    ("use", "is_found"),
    [
        ("y = (m + n).sum()", True),
        ("y = torch.sum(m + n)", True),
        ("y = (m + n).float()", True),
        ("y = (m + n) == 1", True),
        ("y = (m + n) / 2", True),
        ("y = Variable(m + n).sum()", True),
        ("y = m + n == len(x)", True),
        ("y = 0\ny += m + n", True),
        ("y = m + n\nz = y.float()", True),
        ("y = m + n\nz = y.view(-1)\nw = z.sum()", True),
        ("y = m + n\nz = x[y]", False),
        ("y = m + n\ny = y\nz = y.sum()", False),
        ("y = x\ny = m + n\nz = y.sum()", False),
        ("y = x[m + n].sum()", False),
        ("y = (m + n).any()", False),
        ("y = (m + n) * x", False),
        ("y = (m + n) == x", False),
        ("y = ((a == 1) + (a == 2)).sum()", False),
        ("y = (m | n).sum()", False),
        ("def f():\n    y = m + n\n    return x[y]\ndef g(y):\n    return y.sum()", False),
        ("def f():\n    return m + n", False),
    ],
)
def test_sums_of_old_code_are_found_where_they_are_numbers(use: str, is_found: bool) -> None:
    assert bool(found(f"{OLD}{TENSORS}{use}\n", "ARC120")) is is_found


def test_a_difference_raised_no_error_in_old_code_only() -> None:
    assert is_safe(f"{OLD}{TENSORS}y = m - n\n", "ARC120")
    assert not is_safe(f"{START}{TENSORS}y = m - n\n", "ARC120")
    assert not is_safe(f"{OLD}{TENSORS}y = m + n == 2\n", "ARC120")


@pytest.mark.parametrize(
    ("use", "is_found"),
    [
        ("m += n\ny = m == 2", True),
        ("m += a == b\ny = m > 1", True),
        ("m += n\ny = x[m]", False),
        ("m += n\ny = m > 0", False),
        ("m += x\ny = m == 2", False),
        ("m *= n\ny = m == 2", False),
        ("x += m\ny = x == 2", False),
    ],
)
def test_a_mask_that_is_added_to_is_left_to_a_person(use: str, is_found: bool) -> None:
    text = f"{START}{TENSORS}"
    hits = checked(f"{text}{use}\n", "ARC120")
    assert [hit.fix for hit in hits] == [None] * is_found
    if is_found:
        assert messages(f"{text}{use}\n", "ARC120")[0].endswith("write `m = m.byte() + …`")
