"""The longest of the texts that match a rule decides whether it is selected."""

from __future__ import annotations

import pytest

from anyrig.migration.selection import select_rules


@pytest.mark.parametrize(
    ("select", "ignore", "code", "is_selected"),
    [
        (["ARC1", "ARC103"], ["ARC10"], "ARC103", True),
        (["ARC1", "ARC103"], ["ARC10"], "ARC101", False),
        (["ARC10"], ["ARC1", "ARC101"], "ARC101", False),
        (["ARC10"], ["ARC1", "ARC101"], "ARC103", True),
    ],
)
def test_the_longest_text_decides(
    select: list[str], ignore: list[str], code: str, is_selected: bool
) -> None:
    codes = {rule.code for rule in select_rules(select, ignore)}
    assert (code in codes) is is_selected
