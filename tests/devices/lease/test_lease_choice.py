"""Processes that choose devices at the same moment."""

import time

import pytest
from lease_holder import Start, posix_only

from anyrig.devices.lease import one_chooser_at_a_time


def test_two_processes_at_one_moment_take_different_devices(start: Start) -> None:
    racer = """
        for _ in range(20):
            say('ready')
            sys.stdin.readline()
            (lease,) = take(['GPU-aaaa', 'GPU-bbbb'], 1)
            say(lease.uuid)
            sys.stdin.readline()
            lease.release()
    """
    racers = [start(racer), start(racer)]
    for _ in range(20):
        assert [racer.line() for racer in racers] == ["ready", "ready"]
        for racer in racers:
            racer.go()
        assert {racer.line() for racer in racers} == {"GPU-aaaa", "GPU-bbbb"}
        for racer in racers:
            racer.go()


def test_of_two_that_want_all_devices_one_gets_them(start: Start) -> None:
    racer = """
        def slowly(uuids):
            for uuid in uuids:
                yield uuid
                time.sleep(0.02)
        for _ in range(20):
            say('ready')
            sys.stdin.readline()
            leases = take(slowly([{uuids}]), 2)
            say(len(leases))
            sys.stdin.readline()
            for lease in leases: lease.release()
    """
    # In opposite orders: without one chooser at a time, each would take the other's second.
    orders = ("'GPU-aaaa', 'GPU-bbbb'", "'GPU-bbbb', 'GPU-aaaa'")
    racers = [start(racer.replace("{uuids}", uuids)) for uuids in orders]
    for _ in range(20):
        assert [racer.line() for racer in racers] == ["ready", "ready"]
        for racer in racers:
            racer.go()
        assert sorted(racer.line() for racer in racers) == ["0", "2"]
        for racer in racers:
            racer.go()


@posix_only
def test_a_stopped_chooser_delays_the_others_no_longer_than_it_may(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anyrig.devices.lease._PATIENCE_SECONDS", 0.05)
    holder = start("with one_chooser_at_a_time(): say('choosing'); time.sleep(60)")
    assert holder.line() == "choosing"
    with one_chooser_at_a_time():
        pass


def test_choosing_may_be_nested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyrig.devices.lease._PATIENCE_SECONDS", 30)
    started = time.monotonic()
    with one_chooser_at_a_time(), one_chooser_at_a_time():
        pass
    assert time.monotonic() - started < 15
