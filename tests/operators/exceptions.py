"""The entries that may fail, with reasons (exceptions.toml), and the verdict on a sweep."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATH = Path(__file__).with_name("exceptions.toml")


@dataclass(frozen=True)
class Exemption:
    """An entry that fails in some variants, with the reason."""

    entry: str
    variants: tuple[str, ...]
    reason: str


def read_exceptions(path: Path = PATH) -> list[Exemption]:
    """Read exceptions.toml; raise if an entry has no reason."""
    tables = tomllib.loads(path.read_text()).get("exception", [])
    return [Exemption(t["entry"], tuple(t["variants"]), t["reason"]) for t in tables]


@dataclass
class Verdict:
    """The verdict on one variant: unexpected failures, and exemptions that are no longer needed."""

    variant: str
    outcomes: Sequence[dict[str, Any]]
    failures: dict[str, str] = field(default_factory=dict)
    allowed: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        """Whether the outcomes match the exemptions."""
        return not self.failures and not self.stale

    def lines(self) -> list[str]:
        """Return the verdict as text, one finding a line."""
        return [
            *(f"FAIL    {entry}: {message}" for entry, message in self.failures.items()),
            *(f"STALE   {entry}: passes now; take it out of {PATH.name}" for entry in self.stale),
            *(f"allowed {entry}: {reason}" for entry, reason in self.allowed.items()),
        ]


def judge(
    variant: str, outcomes: Sequence[dict[str, Any]], exceptions: Sequence[Exemption]
) -> Verdict:
    """Compare the outcomes of one variant with the exemptions."""
    verdict = Verdict(variant, outcomes)
    reasons = {e.entry: e.reason for e in exceptions if variant in e.variants}
    for outcome in outcomes:
        entry = outcome["entry"]
        if outcome["status"] == "failed":
            if entry in reasons:
                verdict.allowed[entry] = reasons[entry]
            else:
                verdict.failures[entry] = outcome["message"]
        elif entry in reasons:
            verdict.stale.append(entry)
    return verdict
