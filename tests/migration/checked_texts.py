"""Check and rewrite a text of a test."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

from anyrig.migration.check import Rewriting, check_source, rewrite_source
from anyrig.migration.finding import Finding
from anyrig.migration.rule import Rule
from anyrig.migration.rules.every import RULES
from anyrig.migration.selection import select_rules
from anyrig.migration.source_file import SourceFile

# The beginnings of a program, and of one that was written for PyTorch 0.3.
START = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
OLD = START + "from torch.autograd import Variable\nVariable(f)\n"


def checked(text: str, *codes: str) -> tuple[Finding, ...]:
    """The findings of some rules, or of all."""
    return check_source(_source(text), _rules(codes))


def found(text: str, *codes: str) -> list[tuple[str, int]]:
    """The code and the line of each finding of some rules, or of all."""
    return [(finding.code, finding.line) for finding in checked(text, *codes)]


def messages(text: str, *codes: str) -> list[str]:
    """The text of each finding of some rules, or of all."""
    return [finding.message for finding in checked(text, *codes)]


def fixed(text: str, *codes: str) -> str:
    """The text after all fixes of some rules, or of all."""
    done = rewritten(text, *codes)
    assert done.problem is None
    return done.text


def rewritten(text: str, *codes: str, allow_unsafe: bool = True) -> Rewriting:
    return rewrite_source(_source(text), _rules(codes), allow_unsafe=allow_unsafe)


def _source(text: str) -> SourceFile:
    return SourceFile(Path("program.py"), dedent(text), "utf-8", frozenset({"resnet", "logging"}))


def _rules(codes: Sequence[str]) -> Sequence[Rule]:
    return select_rules(codes, ()) if codes else RULES


def is_safe(text: str, *codes: str) -> bool:
    """Whether safe fixes alone change a text."""
    return rewritten(text, *codes, allow_unsafe=False).is_changed
