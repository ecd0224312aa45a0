"""PyTorch's CUDA sanitizer, which finds unordered accesses of two streams to a tensor.

The tracer reports events, streams, memory and waits where PyTorch's CUDA code would, for the rest
of the process.
"""

from __future__ import annotations

import pytest
from on_a_rig import output_of_lines

# Work on a tensor in two streams, with the synchronization that orders it.
PROGRAM = """
    import torch
    from torch.cuda import _sanitizer
    from anyrig.virtual import install

    install("2x1GiB", shape_only={shape_only})
    _sanitizer.enable_cuda_sanitizer()

    def by_event(first, second):
        event = torch.cuda.Event()
        event.record(first)
        event.wait(second)

    def by_a_waiting_host(first, second):
        event = torch.cuda.Event()
        event.record(first)
        event.synchronize()

    def by_an_event_too_early(first, second):
        event = torch.cuda.Event()
        event.record(second)
        event.wait(second)

    def by_memory_handed_out_again(first, second):
        torch.empty(4, device="cuda")

    orders = {{
        "nothing": lambda first, second: None,
        "too early": by_an_event_too_early,
        "memory": by_memory_handed_out_again,
        "the other stream": lambda first, second: first.wait_stream(second),
        "stream": lambda first, second: second.wait_stream(first),
        "event": by_event,
        "host, event": by_a_waiting_host,
        "host, stream": lambda first, second: first.synchronize(),
        "host, device": lambda first, second: torch.cuda.synchronize(),
        "host, copy": lambda first, second: torch.ones(1, device="cuda").cpu(),
        "host, mask": lambda first, second: torch.zeros(1, device="cuda").nonzero(),
    }}
    if {shape_only}:
        del orders["host, mask"], orders["host, copy"]
    first = torch.cuda.current_stream()
    for name, order in orders.items():
        torch.cuda.synchronize()
        x = torch.ones(4, device="cuda")
        second = torch.cuda.Stream()
        order(first, second)
        with torch.cuda.stream(second):
            try:
                x.mul_(2)
            except _sanitizer.CUDASanitizerErrors:
                print("race:", name)
            else:
                print("ordered:", name)
"""


@pytest.mark.parametrize("shape_only", [False, True])
def test_the_cuda_sanitizer_finds_races_and_nothing_else(shape_only: bool) -> None:
    found = output_of_lines(PROGRAM.format(shape_only=shape_only))
    assert [line for line in found if line.startswith("race: ")] == [
        "race: nothing",
        "race: too early",
        "race: memory",
        "race: the other stream",
    ]
    assert len([line for line in found if line.startswith("ordered: ")]) == 5 + 2 * (not shape_only)


def test_what_the_tracer_hears() -> None:
    heard = output_of_lines(
        """
        import gc
        import torch
        import torch.cuda._gpu_trace as gpu_trace
        from anyrig.virtual import install

        install("2x1GiB")
        torch._C._activate_gpu_trace()
        for name in (
            "event_creation", "event_deletion", "event_record", "event_wait", "memory_allocation",
            "memory_deallocation", "stream_creation", "device_synchronization",
            "stream_synchronization", "event_synchronization",
        ):
            register = getattr(gpu_trace, f"register_callback_for_{name}")
            register(lambda *given, name=name: print(name, *given, flush=True))

        x = torch.ones(4, device="cuda:1")
        print(x.data_ptr())
        del x
        with torch.cuda.device(1):
            stream = torch.cuda.Stream()
        event = torch.cuda.Event()
        event.record(stream)
        print(event.cuda_event, stream.cuda_stream)
        event.wait(torch.cuda.default_stream(1))
        event.synchronize()
        stream.synchronize()
        torch.cuda.synchronize(1)
        del event
        gc.collect()
        """
    )
    allocation, address, *rest = heard
    assert allocation == f"memory_allocation {address}"
    freed, made, created, recorded, names, *rest = rest
    event, stream = names.split()
    assert freed == f"memory_deallocation {address}"
    assert [made, created, recorded] == [
        f"stream_creation {stream}",
        f"event_creation {event}",
        f"event_record {event} {stream}",
    ]
    assert rest == [
        f"event_wait {event} 0",
        f"event_synchronization {event}",
        f"stream_synchronization {stream}",
        "device_synchronization",
        f"event_deletion {event}",
    ]
