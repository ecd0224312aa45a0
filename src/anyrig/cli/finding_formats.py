"""The findings of `anyrig check` as text, JSON, SARIF, or annotations of GitHub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from difflib import unified_diff
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .. import __version__
from ..migration.check import Rewriting
from ..migration.finding import Finding
from ..migration.lines import Lines
from ..migration.project import FileReport
from ..migration.rule import Rule
from ..units import format_count

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


class OutputFormat(str, Enum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def format_reports(
    reports: Sequence[FileReport], rules: Sequence[Rule], style: OutputFormat
) -> str:
    """Return the findings of all files in a format; the text may be empty."""
    findings = [finding for report in reports for finding in report.findings]
    if style is OutputFormat.JSON:
        return json.dumps(_facts(reports), indent=2)
    if style is OutputFormat.SARIF:
        return json.dumps(_sarif(findings, rules), indent=2)
    if style is OutputFormat.GITHUB:
        return "\n".join(map(_annotation, findings))
    return "\n".join(map(_line, findings))


def format_summary(reports: Sequence[FileReport]) -> str:
    """Return one line: how many findings there are, and how many could be fixed."""
    findings = [finding for report in reports for finding in report.findings]
    fixed = sum(report.rewriting.fixed for report in reports if report.rewriting is not None)
    parts = [] if not fixed else [f"fixed {format_count(fixed, 'finding')}"]
    if findings:
        files = format_count(len({finding.path for finding in findings}), "file")
        left = f"{len(findings)} left" if fixed else format_count(len(findings), "finding")
        safe = sum(finding.fix == "safe" for finding in findings)
        unsafe = sum(finding.fix == "unsafe" for finding in findings)
        parts.append(f"{left} in {files}")
        if safe:
            parts.append(f"{safe} can be fixed with --fix")
        if unsafe:
            parts.append(f"{unsafe} {'more ' if safe else ''}with --fix --unsafe-fixes")
    elif not fixed:
        parts = [f"no findings in {format_count(len(reports), 'file')}"]
    return ", ".join(parts)


def format_diff(rewriting: Rewriting) -> str:
    """Return the change of a file as a unified diff."""
    path = rewriting.source.path.as_posix().lstrip("/")
    before, after = map(_lines_of, (rewriting.source.text, rewriting.text))
    lines = unified_diff(before, after, f"a/{path}", f"b/{path}")
    return "".join(
        line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n"
        for line in lines
    )


def _lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends; `str.splitlines` would cut at form feeds, too."""
    places = pairwise([*Lines(text).starts, len(text)])
    return [text[start:end] for start, end in places if start < end]


def _line(finding: Finding) -> str:
    mark = " [*]" if finding.fix == "safe" else ""
    place = f"{finding.path}:{finding.line}:{finding.column}"
    return f"{place}: {finding.code}{mark} {finding.message}"


def _annotation(finding: Finding) -> str:
    """Return a finding as a workflow command, with the characters escaped that end one."""
    place = f"file={_escape(finding.path.as_posix())},line={finding.line},col={finding.column}"
    end = f"endLine={finding.end_line},endColumn={finding.end_column}"
    message = finding.message.replace("%", "%25").replace("\n", "%0A")
    return f"::error title={finding.code},{place},{end}::{finding.code} {message}"


def _escape(text: str) -> str:
    for character, code in (("%", "%25"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(character, code)
    return text


def _facts(reports: Sequence[FileReport]) -> dict[str, Any]:
    return {
        "findings": [
            asdict(finding) | {"path": str(finding.path)}
            for report in reports
            for finding in report.findings
        ],
        "fixed": [
            {"path": str(report.path), "findings": report.rewriting.fixed}
            for report in reports
            if report.rewriting is not None and report.rewriting.is_changed
        ],
        "trouble": [
            {"path": str(report.path), "reason": report.trouble}
            for report in reports
            if report.trouble is not None
        ],
    }


def _sarif(findings: Sequence[Finding], rules: Sequence[Rule]) -> dict[str, Any]:
    described = [
        {
            "id": rule.code,
            "name": rule.name,
            "shortDescription": {"text": rule.name},
            "fullDescription": {"text": rule.happens},
            "help": {"text": rule.cure},
            "helpUri": rule.source.split()[0],
        }
        for rule in rules
    ]
    places = {rule.code: index for index, rule in enumerate(rules)}
    results = [
        {
            "ruleId": finding.code,
            "ruleIndex": places[finding.code],
            "level": "warning",
            "message": {"text": finding.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": _uri(finding.path)},
                        "region": {
                            "startLine": finding.line,
                            "startColumn": finding.column,
                            "endLine": finding.end_line,
                            "endColumn": finding.end_column,
                        },
                    }
                }
            ],
        }
        for finding in findings
    ]
    driver = {"name": "anyrig", "version": __version__, "rules": described}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}


def _uri(path: Path) -> str:
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
