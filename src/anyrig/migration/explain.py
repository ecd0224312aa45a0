"""The page of a rule."""

from __future__ import annotations

from collections.abc import Sequence

from .rule import Rule


def page_of(rule: Rule) -> str:
    """Return the page of a rule, as Markdown."""
    parts = [
        f"# {rule.code}: {rule.name}",
        rule.happens,
        f"**Since:** {rule.since or 'always; no version changed it'}.",
        f"**Do:** {rule.cure}",
        f"**Fix:** {_fix_text(rule)}",
        "Found here:",
        f"```py\n{rule.fires}```",
        "Not found here:",
        f"```py\n{rule.silent}```",
    ]
    if rule.fixed is not None:
        parts += [
            "The first example after `anyrig check --fix --unsafe-fixes`:",
            f"```py\n{rule.fixed}```",
        ]
    return "\n\n".join([*parts, f"Source: {rule.source}"]) + "\n"


def index_of(rules: Sequence[Rule]) -> str:
    """Return the list of rules, as Markdown."""
    lines = [
        "# Rules of `anyrig check`",
        "",
        "| code | name | since | fix |",
        "|---|---|---|---|",
    ]
    for rule in rules:
        fix = "" if rule.fixed is None else "migrate" if rule.is_about_versions else "fix"
        since = rule.since or ""
        lines.append(f"| [{rule.code}]({rule.code}.md) | {rule.name} | {since} | {fix} |")
    lines += ["", "`make rules` writes these pages from `src/anyrig/migration/rules`."]
    return "\n".join(lines) + "\n"


def _fix_text(rule: Rule) -> str:
    if rule.fixed is None:
        return "none; a person must decide."
    which = "`anyrig migrate`, and " if rule.is_about_versions else ""
    return f"{which}`anyrig check --fix`, with `--unsafe-fixes` where a finding says so."
