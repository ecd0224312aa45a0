"""Installing a rig in a process: once, before CUDA is used, with visible devices."""

from __future__ import annotations

import textwrap

import pytest
from on_a_rig import output_of_lines, run


def test_a_second_rig_is_refused() -> None:
    assert output_of_lines(
        """
        from anyrig.errors import VirtualRigError
        from anyrig.virtual import install
        first = install("2xA100-80GB")
        assert install("2xA100-80GB") is first
        for arguments in ({"rig": "1xT4"}, {"rig": "2xA100-80GB", "shape_only": True}):
            try:
                install(**arguments)
            except VirtualRigError as error:
                print(error)
        """
    ) == [
        "this process already has the virtual rig 2xA100-80GB, and a rig stays until its process "
        "ends; start another process for T4, without ANYRIG_REHEARSAL in its environment",
        "this process already has the virtual rig 2xA100-80GB, and a rig stays until its process "
        "ends; start another process for 2xA100-80GB, shape-only, without ANYRIG_REHEARSAL in its "
        "environment",
    ]


def test_a_rig_for_this_process_alone_leaves_the_environment() -> None:
    assert output_of_lines(
        """
        import json
        import os
        import torch
        from anyrig.virtual import install
        from anyrig.virtual.installed import inheritance

        # The environment of a process of another rehearsal, started with -I.
        names = ("shape_only", "assume_values", "lone_rank", "without_kernels")
        unset = dict.fromkeys(("host_launch_seconds", "libraries"))
        modes = {**dict.fromkeys(names, False), **unset, "clock": True}
        other = {"rig": "8xL4", **modes, "gpus": "/absent/gpus", "started": 1.0}
        os.environ["ANYRIG_REHEARSAL"] = json.dumps(other)
        for name in ("TORCH_SYMMMEM_IMPLICIT_POOL", "TRITON_INTERPRET"):
            os.environ.pop(name, None)  # set by a rig that another test installed in pytest
        before = dict(os.environ)
        install("2xT4", children=False)
        print({name: value for name, value in os.environ.items() if before.get(name) != value})
        print(inheritance().arguments == {"rig": "2xT4", **modes}, torch.cuda.device_count())
        print(os.path.exists(inheritance().gpus), inheritance().started > 1e9)
        """
    ) == [
        "{'TORCH_SYMMMEM_IMPLICIT_POOL': '0', 'TRITON_INTERPRET': '1'}",
        "True 2",
        "True True",
    ]


COUNT = """
import torch
from anyrig.virtual import install
install("a100-80gb+T4x1+1*l4")
print([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())])
"""


def test_visible_devices_hide_and_reorder() -> None:
    names = ["NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA L4"]
    assert output_of_lines(COUNT) == [str(names)]
    assert output_of_lines(COUNT, CUDA_VISIBLE_DEVICES="2,0") == [str([names[2], names[0]])]
    assert output_of_lines(COUNT, CUDA_VISIBLE_DEVICES="1,9,0") == [str([names[1]])]
    assert output_of_lines(COUNT, CUDA_VISIBLE_DEVICES="") == ["[]"]


def test_visible_devices_count_until_the_first_use() -> None:
    assert output_of_lines(
        """
        import os
        import torch
        from anyrig.virtual import install
        install("4xT4")
        print(torch.cuda.device_count())
        os.environ["CUDA_VISIBLE_DEVICES"] = "3"
        print(torch.cuda.device_count(), torch.cuda.is_available())
        torch.ones(1).cuda()
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
        # Before PyTorch 2.12, the first count after the first use asks NVML, which reads it again.
        asks_nvml = torch.__version__ < (2, 12)
        print(torch.cuda.device_count() == (2 if asks_nvml else 1))
        """
    ) == ["4", "1 True", "True"]


def test_a_prefix_of_every_uuid_names_no_device() -> None:
    assert output_of_lines(
        """
        import torch
        from anyrig.virtual import install
        install("2xT4")
        print(torch.cuda.device_count())
        """,
        CUDA_VISIBLE_DEVICES="GPU-",
    ) == ["0"]


def test_a_child_forked_after_use_is_refused() -> None:
    assert output_of_lines(
        """
        import multiprocessing
        import torch
        from anyrig.virtual import install
        install("1xT4")
        x = torch.ones(1).cuda()

        def work():
            for attempt in (lambda: torch.ones(1).cuda(), lambda: x + 1, torch.cuda.synchronize):
                try:
                    attempt()
                except RuntimeError as error:
                    print(type(error).__name__, str(error).splitlines()[0], flush=True)

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        print(x.item())
        """
    ) == [
        "RuntimeError Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method",
        "AcceleratorError CUDA error: initialization error",
        "RuntimeError Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
        "multiprocessing, you must use the 'spawn' start method",
        "1.0",
    ]


def test_children_forked_by_a_member_of_a_group_make_a_group() -> None:
    # Threads do not survive a fork, and the parent's gloo devices have threads.
    assert sorted(
        output_of_lines(
            """
            import os
            import signal
            import tempfile
            import torch
            import torch.distributed as dist
            from anyrig.virtual import install
            install("2xT4")
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            folder = tempfile.TemporaryDirectory()

            def join(name, rank, size):
                place = f"file://{folder.name}/{name}"
                dist.init_process_group("nccl", init_method=place, rank=rank, world_size=size)

            join("parent", 0, 1)
            dist.destroy_process_group()
            for rank in range(2):
                if os.fork() == 0:
                    signal.alarm(20)
                    join("children", rank, 2)
                    x = torch.ones(1, device=f"cuda:{rank}")
                    dist.all_reduce(x)
                    os.write(1, f"{rank} {x.item()}\\n".encode())  # both share the pipe
                    os._exit(0)
            for _ in range(2):
                os.wait()
            """
        )
    ) == ["0 2.0", "1 2.0"]


def test_asking_whether_there_are_gpus_is_a_use_unless_nvml_is_asked() -> None:
    assert output_of_lines(
        """
        import multiprocessing
        import os
        import torch
        from anyrig.virtual import install
        install("1xT4")

        def work():
            try:
                print(torch.cuda.is_available(), torch.ones(1).cuda().item(), flush=True)
            except RuntimeError as error:
                print(str(error).partition(".")[0], flush=True)

        def in_a_child():
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join()

        torch.cuda.device_count()
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        torch.cuda.is_available()
        in_a_child()
        del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        torch.cuda.is_available()
        in_a_child()
        """
    ) == ["True 1.0", "Cannot re-initialize CUDA in forked subprocess"]


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.sweep)])
def test_programs_end_well(times: int) -> None:
    program = textwrap.dedent(
        """
        import threading
        import torch
        from torch import nn
        from anyrig.virtual import install
        install("2xA100-80GB")
        kept = nn.DataParallel(nn.Linear(4, 4)).cuda()
        kept(torch.randn(8, 4).pin_memory().cuda(non_blocking=True)).sum().backward()
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        event.record(stream)
        generator = torch.Generator("cuda")
        held = torch.randn(3, device="cuda", generator=generator)
        worked = threading.Event()
        def forever():
            torch.ones(2, 2, device="cuda:1") @ torch.ones(2, 2, device="cuda:1")
            worked.set()
            threading.Event().wait()
        threading.Thread(target=forever, daemon=True).start()
        worked.wait()
        """
    )
    for _ in range(times):
        finished = run("-c", program, fresh=True)
        assert (finished.returncode, finished.stdout, finished.stderr) == (0, "", "")


def test_a_context_is_made_where_a_device_is_first_used() -> None:
    assert output_of_lines(
        """
        import torch
        from anyrig.virtual import install

        install("2x1GiB")
        x = torch.ones(1, device="cuda:1")
        repr(x), x.to("cpu"), torch.ones(1).pin_memory()
        print([torch._C._cuda_hasPrimaryContext(i) for i in range(2)])
        """
    ) == ["[False, True]"]


def test_a_backward_before_the_rig_leaves_it_its_own() -> None:
    assert output_of_lines(
        """
        import torch
        (torch.ones(2, requires_grad=True) * 2).sum().backward()
        from anyrig.virtual import install
        install("3xT4")
        for device in ("cuda:2", "cpu", "cuda:0"):
            x = torch.ones(2, requires_grad=True, device=device)
            (x * 3).sum().backward()
            print(x.grad.device)
        """
    ) == ["cuda:2", "cpu", "cuda:0"]


def test_choosing_a_device_initializes_cuda() -> None:
    assert output_of_lines(
        """
        import torch
        from anyrig.virtual import install
        install("2x1GiB")
        print(torch.cuda.is_initialized())
        torch.cuda.set_device(1)
        print(torch.cuda.is_initialized(), torch.cuda.current_device())
        """
    ) == ["False", "True 1"]
