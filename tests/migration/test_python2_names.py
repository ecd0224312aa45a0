"""What parses in Python 3 and worked only in Python 2: names, `next()` and divisions."""

from __future__ import annotations

import pytest
from checked_texts import fixed, found, rewritten


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("xrange(3)", "range(3)"),
        ("raw_input()", "input()"),
        ("unicode(3)", "str(3)"),
        ("unichr(3)", "chr(3)"),
        ("long(3)", "int(3)"),
        ("isinstance(y, basestring)", "isinstance(y, str)"),
    ],
)
def test_a_builtin_function_is_renamed(before: str, after: str) -> None:
    text = f"import torch\nx = {before}\n"
    assert fixed(text, "ARC004") == f"import torch\nx = {after}\n"
    assert rewritten(text, "ARC004", allow_unsafe=False).is_changed


@pytest.mark.parametrize("name", ["items", "values", "keys"])
def test_a_method_of_dictionaries_is_renamed(name: str) -> None:
    text = f"import torch\nx = f(a.iter{name}())\n"
    assert fixed(text, "ARC004") == f"import torch\nx = f(a.{name}())\n"
    assert not rewritten(text, "ARC004", allow_unsafe=False).is_changed


@pytest.mark.parametrize(
    "text",
    [
        "a.iteritems(3)",
        "a.iteritems(b=3)",
        "iteritems(a)",
        "def iteritems(self): pass\na.iteritems()",
        "a.items()",
        "def f(xrange): return xrange(3)",
        "for long in y: long + 1",
        "if sys.version_info < (3,): xrange(3)",
        "x = raw_input() if platform.python_version() < '3' else input()",
        "if PY3: xrange(3)",
        "try: unicode\nexcept (NameError, OSError): unicode = str",
    ],
)
def test_a_name_that_may_exist_is_right(text: str) -> None:
    assert found(f"import sys, torch\n{text}\n", "ARC004") == []


def test_another_condition_or_handler_does_not_help() -> None:
    assert found("import torch\nif torch: xrange(3)\n", "ARC004") == [("ARC004", 2)]
    text = "import torch\ntry: xrange(3)\nexcept OSError: pass\n"
    assert found(text, "ARC004") == [("ARC004", 2)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("iter(a).next()", "next(iter(a))"),
        ("b = iter(a)\nb.next()", "b = iter(a)\nnext(b)"),
        ("self.b = iter(a)\nself.b.next()", "self.b = iter(a)\nnext(self.b)"),
        ("b = iter(a)\nb.next(1)", None),
        ("b, c = iter(a)\nb.next()", None),
        ("b = a\nb.next()", None),
        ("a[0].next()", None),
        ("make(a).next()", None),
    ],
)
def test_next_of_an_iterator(before: str, after: str | None) -> None:
    assert fixed(f"import torch\n{before}\n", "ARC005") == f"import torch\n{after or before}\n"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("assert a % 6 == 0\nn = a / 6", True),
        ("if (a - 4) % b == 0:\n    n = (a - 4) / b", True),
        ("assert a % 6 == 0\nn = a / 3", False),
        ("assert b % 6 == 0\nn = a / 6", False),
        ("assert a % 6 == 1\nn = a / 6", False),
        ("assert a % 6\nn = a / 6", False),
        ("assert a % 6 == 0\nf(a / 6)", False),
        ("assert a % 6 == 0\nn = a // 6", False),
        ("a = torch.ones(3)\nassert a % 6 == 0\nn = a / 6", False),
        ("def f(a):\n    assert a % 6 == 0\nn = a / 6", False),
        ("from __future__ import division\nassert a % 6 == 0\nn = a / 6", False),
    ],
)
def test_a_division_without_a_remainder(text: str, is_found: bool) -> None:
    text = f"import torch\n{text}\n" if "__future__" not in text else f"{text}  # torch\n"
    assert len(found(text, "ARC006")) == is_found
    after = text.replace(" / ", " // ") if is_found else text
    assert fixed(text, "ARC006") == after
