"""A directory of leases for each test, and other processes that hold some."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lease_holder import Holder, Start


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYRIG_LEASE_DIRECTORY", str(tmp_path / "leases"))
    return tmp_path / "leases"


@pytest.fixture
def start() -> Iterator[Start]:
    holders: list[Holder] = []

    def run(code: str) -> Holder:
        holders.append(Holder(code))
        return holders[-1]

    yield run
    for holder in holders:
        holder.close()
