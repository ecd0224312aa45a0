"""Which rules apply: codes and beginnings of codes, chosen and excluded."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import SourceError
from .rule import Rule
from .rules.every import RULES


def select_rules(select: Sequence[str], ignore: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules whose code begins with a chosen text and with no excluded one.

    If a code begins with both a chosen and an excluded text, the longer of them decides.

    Args:
        select: codes or beginnings of codes, such as ``"ARC1"``; ``"ALL"`` or nothing is all rules.
        ignore: codes or beginnings of codes.

    Raises:
        SourceError: no rule's code begins with one of the texts.
    """
    chosen = [_checked(text) for text in select] or [""]
    excluded = [_checked(text) for text in ignore]
    return tuple(
        rule
        for rule in RULES
        if _longest(rule, chosen) > (_longest(rule, excluded) if excluded else -1)
    )


def find_rule(code: str) -> Rule:
    """Return the rule of a code or a name.

    Raises:
        SourceError: no rule has this code or name.
    """
    for rule in RULES:
        if code.upper() == rule.code or code == rule.name:
            return rule
    raise SourceError(f"there is no rule {code!r}; `anyrig check --explain all` lists the rules")


def _checked(text: str) -> str:
    if text.upper() == "ALL":
        return ""
    code = text.strip().upper()
    if not code or not any(rule.code.startswith(code) for rule in RULES):
        raise SourceError(
            f"no rule's code begins with {text!r}; codes are {RULES[0].code} to {RULES[-1].code}, "
            "and `anyrig check --explain all` lists them"
        )
    return code


def _longest(rule: Rule, texts: Sequence[str]) -> int:
    return max((len(text) for text in texts if rule.code.startswith(text)), default=-1)
