"""Printing tensors in shape-only mode."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from anyrig.errors import ValueNeededError
from anyrig.virtual import printing


def test_tensors_of_the_host_are_printed_with_their_values() -> None:
    assert str(torch.tensor([1.0, 2.5])) == "tensor([1.0000, 2.5000])"
    assert str(torch.ones(2, 3, device="cuda:1")) == "tensor(..., size=(2, 3), device='cuda:1')"
    assert str(torch.ones((), device="cuda")) == "tensor(..., size=(), device='cuda:0')"


@pytest.mark.parametrize("module", [printing, torch])
def test_the_error_names_the_programs_line(module: object) -> None:
    """The error names the program's line, not anyrig's or PyTorch's code below it."""
    folder = Path(str(module.__file__)).parent  # type: ignore[attr-defined]
    code = compile("raise_error('aten::item', '')", str(folder / "between.py"), "exec")
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ValueNeededError, match=rf"in {re.escape(__file__)}, line {line} \(exec\("):
        exec(code, {"raise_error": printing.raise_value_needed})


def test_a_librarys_line_comes_with_the_programs_line(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("def ask(raise_error):\n    raise_error('aten::item', '')\n")
    functions: dict[str, Callable[[object], None]] = {}
    exec(compile(library.read_text(), str(library), "exec"), functions)
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ValueNeededError) as raised:
        functions["ask"](printing.raise_value_needed)
    lines = f"{library}, line 2 (raise_error('aten::item', '')), below the program's {__file__}"
    assert f"{lines}, line {line} (functions[" in str(raised.value)


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        ("drawn integers", "Draw those on the CPU and copy them"),
        ("too many", "Compute them on the CPU"),
        ("from outside", "another rank"),
        ("not computed", "it was called"),
    ],
)
def test_the_error_says_where_the_values_come_from(why: str, hint: str) -> None:
    with pytest.raises(ValueNeededError, match=hint):
        printing.raise_value_needed("aten::item", why)


@pytest.mark.parametrize("is_alone", [False, True])
@pytest.mark.parametrize(
    ("why", "hint"),
    [
        (None, r"or"),
        ("drawn integers", r"random integers that the GPU drew\. Draw those .* value is 1, or"),
        ("drawn numbers", r"random numbers that the GPU drew, such as .* value is 1, or"),
        ("too many", r"more than 2 MiB, .* Compute them .* value is 1, or"),
        ("from outside", None),
    ],
)
def test_the_remedy_is_that_of_the_rehearsal(
    why: str | None, hint: str | None, is_alone: bool
) -> None:
    """With ``--ranks``, only fewer ranks can compute, and only rank 0 can send values."""
    outside = "runs rank 0 alone .*Let rank 0 send them, or" if is_alone else "a replayed graph.*or"
    fewer = "each in a process of its own: without --ranks, and with --device all"
    remedies = "rehearse without --shape-only to compute", f"rehearse fewer ranks, {fewer}"
    with pytest.raises(ValueNeededError) as raised:
        printing.raise_value_needed("aten::item", why, is_alone=is_alone)
    text = str(raised.value)
    assert re.search(f"{hint or outside} {remedies[is_alone]}$", text), text
    assert remedies[not is_alone] not in text
    assert ("(--ranks)" in text) == (is_alone and why == "from outside")


def test_without_code_of_the_program_it_is_the_backward_pass() -> None:
    assert printing._program_line(None) == "by the backward pass"
