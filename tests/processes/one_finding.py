"""The one finding of a check."""

from __future__ import annotations

from collections.abc import Iterator

from anyrig.processes.preflight.finding import Finding


def only(findings: Iterator[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found
