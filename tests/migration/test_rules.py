"""Every rule fires on its example and not on the other one, and has a page."""

import re
from pathlib import Path

import pytest
from checked_texts import found, rewritten
from write_rule_pages import FOLDER, pages

from anyrig.migration.rule import Rule
from anyrig.migration.rules.every import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_examples(rule: Rule) -> None:
    assert {code for code, _ in found(rule.fires, rule.code)} == {rule.code}
    assert found(rule.silent) == []
    done = rewritten(rule.fires, rule.code)
    assert done.problem is None
    assert done.text == (rule.fires if rule.fixed is None else rule.fixed)
    assert (found(done.text, rule.code) == []) is (rule.fixed is not None)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_all_rules_together_agree_on_the_example(rule: Rule) -> None:
    once = rewritten(rule.fires)
    assert once.problem is None
    assert rewritten(once.text).text == once.text
    if rule.fixed is not None:
        assert rule.code not in {code for code, _ in found(once.text)}


def test_safe_fixes_are_those_that_leave_the_results() -> None:
    safe = [
        rule.code
        for rule in RULES
        if rewritten(rule.fires, rule.code, allow_unsafe=False).is_changed
    ]
    assert " ".join(safe) == (
        "ARC001 ARC002 ARC003 ARC004 ARC005 ARC101 ARC103 ARC104 ARC106 ARC108 ARC109 ARC110 "
        "ARC112 ARC301"
    )


def test_codes_and_names_are_unique_and_in_order() -> None:
    codes = [rule.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert all(re.fullmatch(r"ARC[0-3]\d\d", code) for code in codes)
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_words(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    for text in (rule.happens, rule.cure):
        assert text[0].isupper() or text[0] == "`"
        assert text.endswith((".", "`"))
        assert "  " not in text
    assert rule.source.startswith("https://")
    if rule.is_about_versions:
        assert rule.since is not None


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_page(path: Path) -> None:
    assert path.read_text() == pages()[path], "run `make rules`"


def test_no_other_pages() -> None:
    assert {*FOLDER.iterdir()} == pages().keys()
