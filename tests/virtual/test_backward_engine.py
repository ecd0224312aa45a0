"""A backward pass computes in its caller's thread while one device is in use."""

from __future__ import annotations

from on_a_rig import output_of_lines

IN_HOOKS = """
import threading
import anyrig.virtual
anyrig.virtual.install("2xT4")
import torch

def backward(*devices):
    x = torch.ones(2, requires_grad=True)
    seen = []
    for device in devices:
        def note(grad):
            seen.append((threading.get_ident() == main, torch.cuda.current_device()))
        y = x.to(device)
        y.register_hook(note)
        y.sum().backward()
    return seen

main = threading.get_ident()
"""


def test_one_device_has_the_callers_thread() -> None:
    assert output_of_lines(f"{IN_HOOKS}print(backward('cuda:1', 'cuda:1'))") == [
        "[(True, 1), (True, 1)]"
    ]


def test_two_devices_have_threads_of_their_own() -> None:
    lines = output_of_lines(f"{IN_HOOKS}print(backward('cuda:1', 'cuda:0', 'cuda:1'))")
    assert lines == ["[(True, 1), (False, 0), (False, 1)]"]


def test_threads_are_as_the_program_wants_them_afterwards() -> None:
    program = """
    from torch.autograd.grad_mode import set_multithreading_enabled

    def fail(grad):
        raise ValueError("a hook's")

    x = torch.ones(2, device="cuda:0", requires_grad=True)
    y = x * 2
    y.register_hook(fail)
    try:
        y.sum().backward()
    except ValueError as error:
        print(error, torch._C._is_multithreading_enabled())
    with set_multithreading_enabled(False):
        x.sum().backward()
        print(torch._C._is_multithreading_enabled())
    """
    lines = output_of_lines(IN_HOOKS + "\n".join(line[4:] for line in program.splitlines()))
    assert lines == ["a hook's True", "False"]


def test_cublas_has_a_workspace_for_forward_and_one_for_backward() -> None:
    program = """
    x = torch.ones(1, 1, device="cuda:0", requires_grad=True)
    y = x @ x
    print(torch.cuda.memory_allocated())
    y.backward()
    (x @ x).backward()
    print(torch.cuda.memory_allocated())
    """
    lines = output_of_lines(IN_HOOKS + "\n".join(line[4:] for line in program.splitlines()))
    workspace = (2 * 4096 + 128) * 1024  # a T4's
    assert lines == [str(workspace + 2 * 512), str(2 * workspace + 3 * 512)]


def test_a_backward_takes_nothing_from_a_pool_of_the_programs_thread() -> None:
    program = """
    pool = torch.cuda.MemPool()
    x = torch.ones(2**20, device="cuda:0", requires_grad=True)
    with torch.cuda.use_mem_pool(pool):
        y = x * 2
        y.sum().backward()
    held = [block for segment in pool.snapshot() for block in segment["blocks"]]
    print(sum(block["size"] for block in held if block["state"] == "active_allocated") == y.nbytes)
    """
    lines = output_of_lines(IN_HOOKS + "\n".join(line[4:] for line in program.splitlines()))
    assert lines == ["True"]
