"""What only Python 2 parses, in each of its forms, and where it stands in the file."""

from __future__ import annotations

import pytest
from checked_texts import checked, fixed, rewritten

from anyrig.migration.python2 import find_repairs

START = "import torch\nprint 0\n"
START_TODAY = "import torch\nprint(0)\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("print", "print()"),
        ("print 'a', 1", "print('a', 1)"),
        ("print ('a'), 1", "print(('a'), 1)"),
        ("print ('a')", "print ('a')"),
        ("print('a') if x else 1", "print(('a') if x else 1)"),
        ("print >>log", "print(file=log)"),
        ("print >>log, 'a', 1", "print('a', 1, file=log)"),
        ("print >>log, 'a',", "print('a', end=\" \", file=log)"),
        ("print >>logs[0, 1], 'a'", "print('a', file=logs[0, 1])"),
        ("if x: print 'a'; print 'b'", "if x: print('a'); print('b')"),
        ("exec 'x = 1'", "exec('x = 1')"),
        ("exec code in scope", "exec(code, scope)"),
        ("exec(code)", "exec(code)"),
        ("raise E, 'a'", "raise E('a')"),
        ("raise E, 'a', trace", "raise E('a').with_traceback(trace)"),
        ("raise E('a', 1)", "raise E('a', 1)"),
        ("x = y<>1", "x = y!=1"),
        ("x = `y + 1`", "x = repr(y + 1)"),
        ("x = 0777, 10L, 0xFFL, 0, 1e5", "x = 0o777, 10, 0xFF, 0, 1e5"),
        ("x = ur'a', Ur'b', u'c', r'd'", "x = r'a', r'b', u'c', r'd'"),
        ("x.copy_(y, async=True)", "x.copy_(y, non_blocking=True)"),
        ("f(x.cuda(), async=True)", "f(x.cuda(), async_=True)"),
        ("x = 'print 1, `a`, 0777'  # print 2, `b` <> 10L", None),
    ],
)
def test_each_form_is_written_as_python_3_does(old: str, new: str | None) -> None:
    assert fixed(f"{START}{old}\n", "ARC0") == f"{START_TODAY}{old if new is None else new}\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("except E, e:", "except E as e:"),
        ("except E , e:", "except E as e:"),
        ("except (A, B), e:", "except (A, B) as e:"),
        ("except E:", "except E:"),
        ("except (A, B):", "except (A, B):"),
    ],
)
def test_each_handler_is_written_as_python_3_does(old: str, new: str) -> None:
    text = "try:\n    pass\n{}\n    pass\n"
    assert fixed(START + text.format(old), "ARC0") == START_TODAY + text.format(new)


def test_only_an_argument_of_a_copy_is_renamed_safely() -> None:
    safe = {
        call: rewritten(f"import torch\n{call}\n", "ARC0", allow_unsafe=False)
        for call in ("x.cuda(0, async=True)", "f(async=True)", "x.cuda(f(async=True))")
    }
    assert safe["x.cuda(0, async=True)"].text == "import torch\nx.cuda(0, non_blocking=True)\n"
    for call in ("f(async=True)", "x.cuda(f(async=True))"):
        assert safe[call].problem == (
            "it is Python 2, and cannot be rewritten without ARC002, with --unsafe-fixes"
        )


def test_what_is_left_out_is_named_once_and_in_order() -> None:
    text = (
        "import torch\nf(async=True)\nprint 1\nprint 2\nx = `1`\ny = torch.cuda.FloatTensor([1])\n"
    )
    assert rewritten(text, "ARC112", allow_unsafe=False).problem == (
        "it is Python 2, and cannot be rewritten without ARC001, ARC002, ARC003, "
        "with --unsafe-fixes"
    )
    assert rewritten(text, "ARC112").problem == (
        "it is Python 2, and cannot be rewritten without ARC001, ARC002, ARC003"
    )
    assert rewritten(text, "ARC001", "ARC003", allow_unsafe=False).problem == (
        "it is Python 2, and cannot be rewritten without ARC002, with --unsafe-fixes"
    )


def test_repairs_are_in_the_order_of_the_text_and_counted_as_findings() -> None:
    text = "import torch\nx = 10L\nprint `x`, x\n"
    starts = [repair.start for repair in find_repairs(text)]
    assert starts == sorted(starts)
    assert len(starts) == 3
    assert rewritten(text, "ARC0").fixed == 3


def test_a_comment_silences_what_only_python_2_parses() -> None:
    text = "import torch\nprint 1  # noqa: ARC001\nprint 2\n"
    assert [finding.line for finding in checked(text)] == [3]
    assert rewritten(text).problem == "it is Python 2, and cannot be rewritten without ARC001"


def test_places_are_those_of_the_file() -> None:
    """Both of what is repaired, and of what the rules find in the repaired text."""
    text = "import torch\nx = `1`, xrange(3), 10L, xrange(4)\nif x:\n\tprint xrange(5)\n"
    places = [
        (each.code, each.line, each.column, each.end_line, each.end_column)
        for each in checked(text)
    ]
    assert places == [
        ("ARC003", 2, 5, 2, 6),
        ("ARC004", 2, 10, 2, 16),
        ("ARC003", 2, 21, 2, 24),
        ("ARC004", 2, 26, 2, 32),
        ("ARC001", 4, 2, 4, 7),
        ("ARC004", 4, 8, 4, 14),
    ]


def test_tabs_that_python_3_understands_stay() -> None:
    assert fixed("import torch\nif x:\n\tprint 1\n") == "import torch\nif x:\n\tprint(1)\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print 1", "ARC001"),
        ("exec code", "ARC003"),
        ("raise E, 1", "ARC003"),
        ("f(async = 1)", "ARC002"),
        *((f"{name}(3)", "ARC004") for name in ("xrange", "raw_input")),
        *((f"a.iter{name}()", "ARC004") for name in ("items", "values", "keys")),
        ("x = 'CUDA_VISIBLE_DEVICE'", "ARC205"),
        ("x = 'CUDA_VISBLE_DEVICES'", "ARC205"),
    ],
)
def test_a_file_without_torch_is_checked_too(text: str, code: str) -> None:
    assert [each.code for each in checked(f"{text}\n")] == [code]


def test_a_tab_reaches_to_the_next_eighth_column_and_tabs_within_a_line_stay() -> None:
    text = "import torch\nif x:\n    if y:\n\tprint 1,\t2\n    \tprint 3\n"
    assert fixed(text) == (
        "import torch\nif x:\n    if y:\n        print(1,\t2)\n        print(3)\n"
    )


@pytest.mark.parametrize("old", ["print 1", "print 1\r\n\tx = 2"])
def test_a_text_that_neither_version_parses_has_the_error_of_python_3(old: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        checked(f"import torch\n{old}\ndef f(:\n")
    assert caught.value.lineno == 2


@pytest.mark.parametrize("text", ["x = '\0'\nimport torch\n", f"import torch\n{'(' * 3000}\n"])
def test_a_text_that_python_refuses_to_parse_is_a_syntax_error(text: str) -> None:
    with pytest.raises(SyntaxError):
        checked(text)


def test_print_that_is_a_function_already_stays() -> None:
    future = "from __future__ import (division,\n    print_function)\n"
    text = future + "import torch\nprint('a') if x else 1\nx = 1 <> 2\n"
    assert fixed(text) == text.replace("<>", "!=")


def test_print_stays_a_statement_beside_other_imports_from_the_future() -> None:
    text = "from __future__ import division\nimport torch\nprint 'a', 1\n"
    assert fixed(text) == text.replace("print 'a', 1", "print('a', 1)")
