"""What a page says without scripts, what its data holds, and what it must not let through."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from example_facts import make_facts
from reading import Data, ReadPage

from anyrig.rehearsal.page import payload
from anyrig.rehearsal.page.document import format_page
from anyrig.rehearsal.page.write import write_page

HOSTILE = "</script><script>alert(1)</script>\"'`&<!--<img src=x onerror=alert(2)>$data ]]> \u2028"
EVERY_ELEMENT = {
    *("html", "head", "meta", "title", "style", "body", "a", "header", "div", "h1", "h2", "h3"),
    *(
        "span",
        "bdi",
        "nav",
        "button",
        "dl",
        "dt",
        "dd",
        "small",
        "p",
        "ul",
        "ol",
        "li",
        "i",
        "main",
    ),
    *("section", "label", "input", "canvas", "figure", "svg"),
    *("path", "text", "polygon", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("code", "pre", "strong", "footer", "details", "summary", "dialog", "kbd", "form", "script"),
}


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return make_facts(devices=2, steps=4, layers=2)


@pytest.fixture(scope="module")
def page(facts: dict[str, Any]) -> ReadPage:
    return ReadPage.of(format_page(facts))


def test_a_page_says_everything_without_scripts(page: ReadPage) -> None:
    for words in (
        "train.py",
        "2xA100-80GB",
        "typical step",
        "of steps 3, 4",
        "GPUs busy",
        "The program waits for the device in every step",
        "saves 1.10 ms per step",
        "Add up loss.detach() on the device",
        "nccl:all_reduce",
        "blocks.*.mlp.up",
        "activations",
        "44 measured training steps, on this GPU",
        "exit status 0",
    ):
        assert words in page.text, words
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert [picture["aria-label"] for picture in pictures] == [
        "cuda:0, at most 15.95 GiB",
        "cuda:1, at most 15.95 GiB",
    ]
    captions = ("Critical path of a typical step", "Where the time goes", "Steps", "Devices")
    assert all(caption in page.text for caption in captions)


def test_the_data_of_a_page_are_the_facts(facts: dict[str, Any], page: ReadPage) -> None:
    data = Data.of(page.scripts["data"])
    origin = min(curve["seconds"][0] for curve in facts["memory"])
    columns, texts = facts["intervals"], facts["texts"]
    expected = {
        (track, round((begin - origin) * 1e9), texts[name])
        for track, begin, name in zip(
            columns["track"], columns["begin_seconds"], columns["name"], strict=True
        )
    }
    found = {(track, begin, name) for track, begin, _, name in data.intervals()}
    assert len(data.columns["pause_ns"]) == len(columns["track"])
    # Rounding moves a begin by a nanosecond at most, to the end of the interval before it.
    near = {(track, begin + by, name) for track, begin, name in expected for by in (0, 1)}
    assert found <= near
    assert len(found & expected) > 0.9 * len(expected)
    seconds = sum(data.columns["duration_ns"]) / 1e9
    assert seconds == pytest.approx(sum(columns["seconds"]), rel=1e-4)
    assert sum(data.columns["total_ns"]) / 1e9 == pytest.approx(sum(columns["seconds"]), rel=1e-4)
    path = sum(segment["seconds"] for step in facts["steps"] for segment in step["path"])
    assert sum(data.columns["path_ns"]) / 1e9 == pytest.approx(path, rel=1e-4)
    assert data.header["merged"] is None


def test_a_large_run_fits_by_merging_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = make_facts(devices=2, steps=5, layers=4, jitter=0.5)
    whole = format_page(facts)
    most = len(ReadPage.of(whole).scripts["data"]) * 3 // 4 * 7 // 10
    monkeypatch.setattr(payload, "MOST_BYTES", most)
    page = ReadPage.of(format_page(facts))
    assert len(page.scripts["data"]) * 3 // 4 <= most
    assert "are drawn as one" in page.text
    data, intervals = Data.of(page.scripts["data"]), facts["intervals"]
    assert data.header["merged"]["intervals"] == len(intervals["track"])
    assert sum(data.columns["count"]) == len(intervals["track"])
    assert len(data.columns["count"]) < len(intervals["track"])
    # No time is lost, and the sums that the search shows are those of all intervals.
    shown = sum(data.columns["duration_ns"]) - sum(data.columns["gap_ns"])
    assert shown / 1e9 == pytest.approx(sum(intervals["seconds"]), rel=1e-4)
    assert sum(data.columns["total_ns"]) / 1e9 == pytest.approx(sum(intervals["seconds"]), rel=1e-4)


def test_fifty_steps_of_eight_devices_stay_below_three_megabytes(tmp_path: Path) -> None:
    facts = make_facts(devices=8, steps=50, layers=2)
    assert len(facts["intervals"]["track"]) > 50_000
    write_page(facts, tmp_path / "out.html")
    assert (tmp_path / "out.html").stat().st_size < 1_300_000


def test_only_the_scripts_of_the_page_may_run(page: ReadPage) -> None:
    program = page.scripts["script"]
    digest = base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in page.policy
    assert "default-src 'none'" in page.policy
    assert "unsafe-eval" not in page.policy
    script_sources = page.policy.partition("script-src")[2].partition(";")[0]
    assert "unsafe-inline" not in script_sources
    for _, attributes in page.tags:
        # A hash may have two slashes.
        outside = [v for name, v in attributes.items() if v and "//" in v and name != "content"]
        assert outside == [], "the page would ask another host"
        assert not any(name.startswith("on") for name in attributes)


def test_the_page_states_the_interval_of_the_step_or_why_there_is_none() -> None:
    facts = make_facts(devices=1, steps=3, layers=1)
    facts["step_interval"] |= {"low_seconds": 0.8, "high_seconds": 1.25}
    text = ReadPage.of(format_page(facts)).text
    assert "0.8 to 1.25 s" in text
    assert "9 of 10 of 44 measured training steps, on this GPU" in text
    facts["step_interval"] |= {"low_seconds": None, "high_seconds": None, "reason": "untried"}
    text = ReadPage.of(format_page(facts)).text
    assert "not known" in text
    assert "untried" in text


def hostile_facts() -> dict[str, Any]:
    """Facts in which every text is hostile."""
    facts = make_facts(devices=1, steps=3, layers=1)
    kinds = {facts["texts"][kind] for kind in facts["intervals"]["kind"]}
    facts["texts"] = [text if text in kinds else text + HOSTILE for text in facts["texts"]]
    facts |= dict.fromkeys(("program", "rig", "torch", "anyrig"), HOSTILE)
    facts["arguments"] = [HOSTILE]
    facts["error"] = {"kind": HOSTILE, "text": HOSTILE, "line": HOSTILE}
    facts["tracks"] = [{**track, "title": HOSTILE} for track in facts["tracks"]]
    for device in facts["devices"]:
        device["gpu"] = HOSTILE
    facts["step_interval"]["reason"] = HOSTILE
    for finding in facts["findings"]:
        finding |= dict.fromkeys(("code", "title", "line", "text", "remedy"), HOSTILE)
    return facts


def test_hostile_texts_stay_texts() -> None:
    written = format_page(hostile_facts())
    page = ReadPage.of(written)
    assert {tag for tag, _ in page.tags} <= EVERY_ELEMENT
    assert [attributes.get("id") for tag, attributes in page.tags if tag == "script"] == [
        "data",
        None,
    ]
    assert page.text.count(HOSTILE) > 30
    assert all(
        "alert" not in name and "onerror" not in name for _, names in page.tags for name in names
    )


def test_a_name_that_is_no_text_is_written(tmp_path: Path) -> None:
    facts = make_facts(devices=1, steps=3, layers=1) | {"program": "tr\udce4in.py"}
    write_page(facts, tmp_path / "out.html")
    assert "tr\\udce4in.py" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_a_failed_page_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    path.write_text("old")
    facts = make_facts(devices=1, steps=3, layers=1)
    facts["texts"][facts["intervals"]["kind"][0]] = "dream"
    with pytest.raises(ValueError, match="'dream'; known are kernel"):
        write_page(facts, path)
    with pytest.raises(ValueError, match="in version 1, not 'anyrig-rehearsal' in version 2"):
        write_page({**facts, "version": 2}, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("missing", ["steps", "intervals", "memory", "everything"])
def test_a_program_may_end_early(missing: str) -> None:
    facts = make_facts(devices=1, steps=3, layers=1)
    if missing in ("steps", "everything"):
        facts |= {"steps": [], "typical_step": None, "step_interval": None}
    if missing in ("intervals", "everything"):
        facts["intervals"] = {name: [] for name in facts["intervals"]}
    if missing in ("memory", "everything"):
        facts["memory"] = []
    if missing == "everything":
        facts |= {"devices": [], "tracks": [], "findings": [], "texts": []}
        facts["error"] = {"kind": "OutOfMemoryError", "text": "CUDA out of memory.", "line": None}
    page = ReadPage.of(format_page(facts))
    assert "rehearsed on" in page.text
    assert ("OutOfMemoryError" in page.text) == (missing == "everything")
