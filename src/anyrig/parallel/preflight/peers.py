"""Whether the cards of this machine read each other's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...devices.link import Link
from .finding import Finding, Level


def check_peers(links: Sequence[Link]) -> Iterator[Finding]:
    """Look at the path between every two cards; what is not known of one is not told."""
    known = [link for link in links if link.peer_access is not None]
    without = [link for link in known if not link.peer_access]
    for link in without:
        yield Finding(
            "peer access",
            Level.DOUBTFUL,
            f"{link.first} and {link.second} copy through the host's memory",
            "nothing, on cards without it; in a virtual machine, look at ACS and IOMMU",
        )
    if known and not without:
        cards = {device for link in known for device in (link.first, link.second)}
        text = f"{len(cards)} cards read each other's memory"
        yield Finding("peer access", Level.GOOD, text)
