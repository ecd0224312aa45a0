"""Check and rewrite a text of a test."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

from anyrig.migration.check import Rewriting, check_source, rewrite_source
from anyrig.migration.rule import Rule
from anyrig.migration.rules.every import RULES
from anyrig.migration.selection import select_rules
from anyrig.migration.source_file import SourceFile


def found(text: str, *codes: str) -> list[tuple[str, int]]:
    """The code and the line of each finding of some rules, or of all."""
    return [(finding.code, finding.line) for finding in check_source(_source(text), _rules(codes))]


def messages(text: str, *codes: str) -> list[str]:
    """The text of each finding of some rules, or of all."""
    return [finding.message for finding in check_source(_source(text), _rules(codes))]


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
