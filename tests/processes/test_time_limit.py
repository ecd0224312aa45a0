"""The launcher's ``--timeout`` is the default of the process groups that a script makes."""

from datetime import timedelta

import pytest
from torch.distributed import distributed_c10d

from anyrig.processes.time_limit import TIME_LIMIT_VARIABLE, set_time_limit

NAMES = ("default_pg_timeout", "default_pg_nccl_timeout")


@pytest.mark.parametrize("text", [None, "7.5"])
def test_the_limit_holds_for_every_backend(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: getattr(distributed_c10d, name) for name in NAMES}
    for name, limit in before.items():
        monkeypatch.setattr(distributed_c10d, name, limit)  # to be put back
    monkeypatch.delenv(TIME_LIMIT_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(TIME_LIMIT_VARIABLE, text)
    set_time_limit()
    expected = dict.fromkeys(NAMES, timedelta(seconds=7.5)) if text else before
    assert {name: getattr(distributed_c10d, name) for name in NAMES} == expected
