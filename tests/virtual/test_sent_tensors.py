"""CUDA tensors and events in queues of `torch.multiprocessing`, shared by several processes."""

from __future__ import annotations

from on_a_rig import PROGRAMS, output_of


def test_both_processes_see_each_other_write() -> None:
    program = str(PROGRAMS / "sends_tensors.py")
    assert output_of("-m", "anyrig", "rehearse", "--rig", "2x1GiB", program).splitlines() == [
        "('cuda:1', [3.0, 4.0], True) 0",
        "Attempted to send CUDA tensor received from another process;",
        "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0] 30.0",
        "('Parameter', True, True)",
        # Memory stays allocated until the receiver releases it.
        f"{float(2**20)} {4 * 2**20}",
        "let go",
        "0",
        "let go of all",
        "0",
        "0",
    ]


def test_a_process_waits_for_an_event_of_another() -> None:
    program = str(PROGRAMS / "shares_events.py")
    assert output_of("-m", "anyrig", "rehearse", "--rig", "2x1GiB", program).splitlines() == [
        "('unrecorded', True, device(type='cuda', index=0)) True",
        "False",
        # The other process has seen the event done, so the time has passed here too.
        "('recorded', False, 50, True) True 50",
        "('waited on a stream', 50)",
        "recorded here False 50",
        "('waited for there', True) True",
        "CUDA error: invalid resource handle",  # of another process's event
        "CUDA error: invalid resource handle",
        "CUDA error: invalid argument",  # with times
        "0",
    ]


def test_memory_of_a_killed_receiver_comes_back() -> None:
    program = str(PROGRAMS / "kills_receivers.py")
    assert output_of("-m", "anyrig", "rehearse", "--rig", "1x1GiB", program).splitlines() == [
        "received",
        "held 4194304",  # the receivers live
        "held 4194304",  # one of them does
        "freed 0",
    ]


def test_a_request_takes_what_receivers_have_released() -> None:
    program = str(PROGRAMS / "reuses_sent_memory.py")
    assert output_of("-m", "anyrig", "rehearse", "--rig", "1x64MiB", program).splitlines() == [
        str(40 * 2**20),
        "40",
        "in use",
        "released",
        "40 1",  # the retry is that of the request that failed
        "0",
    ]
