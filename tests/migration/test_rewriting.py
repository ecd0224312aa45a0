"""Files are rewritten by position: everything else in them stays as it was."""

from dataclasses import replace
from pathlib import Path

import pytest
from checked_texts import fixed, found, rewritten

from anyrig.migration.edit import Edit, Fix, apply_edits, choose_compatible
from anyrig.migration.finding import Hit
from anyrig.migration.program import Program
from anyrig.migration.project import rewrite_files
from anyrig.migration.rules.every import RULES
from anyrig.migration.source_file import read_source, write_source


def migrate(path: Path) -> str | None:
    (report,) = rewrite_files([path], RULES, allow_unsafe=True, write=True)
    return report.trouble


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_newlines_stay(newline: str, tmp_path: Path) -> None:
    lines = ["import torch", "def f(loss):", "    loss.backward()", "    return loss.data[0]", ""]
    path = tmp_path / "a.py"
    path.write_bytes(newline.join(lines).encode())
    assert migrate(path) is None
    assert path.read_bytes() == newline.join(lines).replace(".data[0]", ".item()").encode()


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("# -*- coding: latin-1 -*-\n", "latin-1"),
        ("# coding: koi8-r\n", "koi8-r"),
        ("\ufeff", "utf-8"),
        ("", "utf-8"),
    ],
)
def test_encodings_stay(head: str, encoding: str, tmp_path: Path) -> None:
    word = "ключ" if encoding == "koi8-r" else "é"
    text = f"{head}import torch\ny = '{word}', torch.cuda.FloatTensor([1]), '{word}'\n"
    path = tmp_path / "a.py"
    path.write_bytes(text.encode(encoding))
    assert migrate(path) is None
    new = 'torch.tensor([1], dtype=torch.float32, device="cuda")'
    assert path.read_bytes() == text.replace("torch.cuda.FloatTensor([1])", new).encode(encoding)


def test_bytes_without_a_declared_encoding_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"import torch\n# caf\xe9\nprint 'a'\n")
    assert migrate(path) is None
    assert path.read_bytes() == b"import torch\n# caf\xe9\nprint('a')\n"


def test_mode_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "a.py", tmp_path / "b.py"
    path.write_text("import torch\nprint 'a'\n")
    path.chmod(0o4755)
    link.symlink_to(path)
    assert migrate(link) is None
    assert link.is_symlink()
    assert path.read_text() == "import torch\nprint('a')\n"
    assert path.stat().st_mode & 0o7777 == 0o4755
    assert {*tmp_path.iterdir()} == {path, link}


def test_a_failed_write_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"# coding: ascii\nimport torch\n")
    with pytest.raises(UnicodeEncodeError):
        write_source(read_source(path), "é")
    assert path.read_bytes() == b"# coding: ascii\nimport torch\n"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_went_away_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("import torch\n")
    source = read_source(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        write_source(source, "x = 1\n")
    assert [*tmp_path.iterdir()] == []


def test_an_encoding_that_contradicts_the_byte_order_mark_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"\xef\xbb\xbf# coding: latin-1\nimport torch\nprint 'a'\n")
    trouble = migrate(path)
    assert trouble is not None
    assert trouble.startswith("cannot be read: encoding problem")


def test_a_text_without_bytes_in_the_encoding_is_not_written(tmp_path: Path) -> None:
    def find(program: Program) -> list[Hit]:
        edit = Edit(len(program.text), len(program.text), "é")
        return [] if "é" in program.text else [Hit(0, 1, "it", Fix((edit,), is_safe=True))]

    path = tmp_path / "a.py"
    path.write_text("# coding: ascii\nimport torch\nx = 1 #")
    rules = [replace(RULES[0], find=find)]
    (report,) = rewrite_files([path], rules, allow_unsafe=True, write=True)
    assert report.trouble is not None
    assert report.trouble.startswith("cannot be written, and is unchanged: 'ascii' codec")
    assert path.read_text() == "# coding: ascii\nimport torch\nx = 1 #"


def test_comments_stay() -> None:
    program = """\
    import torch
    import torch.nn as nn

    loss = nn.MSELoss(
        size_average=False,  # a sum
    )
    """
    assert 'reduction="sum",  # a sum' in fixed(program)
    kept = """\
    import torch
    from torch.autograd import Variable

    x = Variable(torch.ones(3),  # a tensor
                 requires_grad=True)
    """
    assert found(kept) == [("ARC101", 4)]
    done = rewritten(kept)
    assert not done.is_changed  # the comment would be lost


def test_calls_over_several_lines_keep_their_brackets() -> None:
    program = (
        "import torch\nfrom torch.autograd import Variable\nx = Variable(\n    torch.ones(3))\n"
    )
    assert fixed(program) == "import torch\nx = (torch.ones(3))\n"


def test_a_file_that_cannot_be_repaired_is_left_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    text = "import torch\nprint 'a'\ndef f(:\n"
    path.write_text(text)
    trouble = migrate(path)
    assert trouble is not None
    assert trouble.startswith("parses neither as Python 3 nor as Python 2: line 2")
    assert path.read_text() == text


def test_a_fix_that_breaks_the_text_leaves_the_file_and_is_named(tmp_path: Path) -> None:
    def find(program: Program) -> list[Hit]:
        return [Hit(0, 1, "a mistake of the rule", Fix((Edit(0, 1, "("),), is_safe=True))]

    path = tmp_path / "a.py"
    path.write_text("import torch\n")
    rules = [replace(RULES[0], find=find)]
    (report,) = rewrite_files([path], rules, allow_unsafe=True, write=True)
    assert report.trouble is not None
    assert report.trouble.startswith("left as it was: the rewritten text would not parse: line 1: ")
    assert path.read_text() == "import torch\n"


def test_python_2_is_not_rewritten_without_its_rules() -> None:
    done = rewritten("import torch\nprint 'a'\nx = torch.cuda.FloatTensor([1])\n", "ARC112")
    assert done.problem == "it is Python 2, and cannot be rewritten without ARC001"
    assert not done.is_changed


def test_safe_fixes_alone() -> None:
    program = (
        "import torch\nimport torch.nn.functional as F\ndef f(loss, x):\n    loss.backward()\n"
    )
    program += "    return loss.data[0], F.softmax(x)\n"
    done = rewritten(program, allow_unsafe=False)
    assert done.text == program.replace(".data[0]", ".item()")


@pytest.mark.parametrize(
    ("comment", "codes"),
    [
        ("", ["ARC101", "ARC103"]),
        ("# noqa", []),
        ("# noqa: ARC101", ["ARC103"]),
        ("# noqa:ARC103,E501", ["ARC101"]),
        ("# why  # noqa: E501 ARC101, ARC103", []),
        ("# noqa: E501", ["ARC101", "ARC103"]),
        ("#NoQA:arc101", ["ARC103"]),
        ("#   noqa: ARC10", ["ARC101", "ARC103"]),
    ],
)
def test_noqa(comment: str, codes: list[str]) -> None:
    line = f"print(Variable(torch.ones(3)), torch.ones(3).sum().data[0])  {comment}\n"
    program = f"import torch\nfrom torch.autograd import Variable\n{line}"
    assert [code for code, _ in found(program)] == codes
    silenced = "noqa" in comment and len(codes) == 0
    assert (fixed(program) == program) is silenced


def test_noqa_at_the_end_of_any_line_of_a_finding() -> None:
    program = "import torch\nfrom torch.autograd import Variable\nx = Variable(\n    torch.ones(3))"
    assert found(program) == [("ARC101", 3)]
    assert found(f"{program}  # noqa: ARC101\n") == []


def test_a_form_feed_ends_no_line() -> None:
    program = "import torch\n\f\nx = torch.ones(3).sum()[0]{}\ny = torch.ones(3).sum()[0]\n"
    assert found(program.format("")) == [("ARC103", 3), ("ARC103", 4)]
    assert found(program.format("  # noqa")) == [("ARC103", 4)]


def test_edits() -> None:
    assert apply_edits("abcdef", [Edit(4, 5, "X"), Edit(1, 2), Edit(2, 2, "--")]) == "a--cdXf"
    shared = Edit(0, 0, "import torch\n")
    one, two, three = (
        Fix((shared, Edit(3, 5, "x")), True),
        Fix((Edit(4, 6, "y"),), True),
        Fix((shared, Edit(5, 6, "z")), True),
    )
    assert choose_compatible([one, two, three]) == (one, three)
