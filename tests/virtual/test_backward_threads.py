"""The thread that runs a backward while one device is in use, and state left by a backward."""

from __future__ import annotations

import pytest
from on_a_rig import output_of_lines

# Each function adds code of the program to the backward pass from `loss`.
SEEN_BY = {
    "tensor hook": "hidden.register_hook(note)",
    "leaf hook": "x.register_hook(note)",
    "hook after accumulating": "x.register_post_accumulate_grad_hook(note)",
    "node hook": "hidden.grad_fn.register_hook(note)",
    "node hook before": "hidden.grad_fn.register_prehook(note)",
    "function": "loss = Noted.apply(loss)",
}


@pytest.mark.parametrize("code", SEEN_BY.values(), ids=SEEN_BY)
def test_code_of_the_program_runs_in_the_thread_of_its_device(code: str) -> None:
    lines = output_of_lines(
        f"""
        import threading
        from anyrig.virtual import install

        install("2x1GiB")

        import torch

        def note(*gradients):
            in_caller = threading.get_ident() == threading.main_thread().ident
            print(in_caller, torch.cuda.current_device())

        class Noted(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x.clone()

            @staticmethod
            def backward(context, gradient):
                note()
                return gradient

        x = torch.ones(4, device="cuda:1", requires_grad=True)
        hidden = x * 2
        loss = hidden.exp().sum()
        {code}
        loss.backward()
        """
    )
    assert lines == ["False 1"]


def test_nodes_of_pytorch_compute_in_the_callers_thread_while_one_device_is_in_use() -> None:
    lines = output_of_lines(
        """
        from anyrig.virtual import install

        install("2x1GiB")

        import torch
        from torch.profiler import ProfilerActivity, profile

        def threads(device):
            x = torch.ones(4, device=device, requires_grad=True)
            # Without `acc_events`, PyTorch 2.11 warns at the start of every profile.
            with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
                x.exp().sum().backward()
            events = profiler.events()
            return len({event.thread for event in events if event.name.startswith("aten::")})

        print(threads("cuda:1"))
        torch.ones(1, device="cuda:0")
        print(threads("cuda:1"))
        """
    )
    assert lines == ["1", "2"]


def test_a_backward_that_runs_out_of_memory_leaves_nothing_on_the_gpu() -> None:
    lines = output_of_lines(
        """
        from anyrig.virtual import install

        install("64MiB")

        import torch

        def fail():
            x = torch.ones(2**20, device="cuda", requires_grad=True)
            loss = x.exp().sum() + x.sin().sin().sum()
            full = []
            try:
                while True:
                    full.append(torch.empty_like(x))
            except torch.OutOfMemoryError:
                print("full")
            loss.backward()

        try:
            fail()
        except torch.OutOfMemoryError:
            pass  # while handled, the exception holds the tensors of `fail`
        print(torch.cuda.memory_allocated())
        """
    )
    assert lines == ["full", "0"]


def test_threads_are_as_the_program_wants_them_after_a_backward() -> None:
    lines = output_of_lines(
        """
        from anyrig.virtual import install

        install("2x1GiB")

        import torch
        from torch.autograd.grad_mode import set_multithreading_enabled

        x = torch.ones(2, device="cuda", requires_grad=True)
        y = x.exp()
        x.exp().sum().backward()
        print(torch._C._is_multithreading_enabled())
        y.detach().zero_()
        try:
            y.sum().backward()
        except RuntimeError as error:
            print("modified by an inplace operation" in str(error))
        print(torch._C._is_multithreading_enabled())
        with set_multithreading_enabled(False):
            x.sum().backward()
            print(torch._C._is_multithreading_enabled())
        """
    )
    assert lines == ["True", "True", "True", "False"]


def test_cublas_has_a_workspace_for_forward_and_one_for_backward() -> None:
    lines = output_of_lines(
        """
        from anyrig.virtual import install

        install("T4")

        import torch

        x = torch.ones(1, 1, device="cuda", requires_grad=True)
        y = x @ x
        print(torch.cuda.memory_allocated())
        y.backward()
        (x @ x).backward()
        print(torch.cuda.memory_allocated())
        """,
        TORCH_CUBLAS_WORKSPACE_CACHE="1",  # PyTorch 2.15 keeps no workspaces otherwise
    )
    workspace = (2 * 4096 + 128) * 1024
    assert lines == [str(workspace + 2 * 512), str(2 * workspace + 3 * 512)]


def test_a_backward_takes_nothing_from_a_pool_of_the_programs_thread() -> None:
    lines = output_of_lines(
        """
        from anyrig.virtual import install

        install("T4")

        import torch

        pool = torch.cuda.MemPool()
        x = torch.ones(2**20, device="cuda", requires_grad=True)
        with torch.cuda.use_mem_pool(pool):
            y = x * 2
            y.sum().backward()
        held = [block for segment in pool.snapshot() for block in segment["blocks"]]
        held_bytes = sum(each["size"] for each in held if each["state"] == "active_allocated")
        print(held_bytes == y.nbytes)
        """
    )
    assert lines == ["True"]
