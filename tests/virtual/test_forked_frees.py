"""A forked child frees what it inherited from a parent that used CUDA."""

from __future__ import annotations

from on_a_rig import output_of_lines


def test_a_child_takes_no_lock_that_its_parent_may_have_held() -> None:
    # At a fork, the threads of the parent are somewhere in the allocators. Two of three children
    # would wait for ever for one of their locks.
    assert output_of_lines(
        """
        import os
        import signal
        import threading
        import torch
        from anyrig.virtual import install
        install("1xT4")
        tensors = [torch.ones(1000, device="cuda") for _ in range(40)]
        pinned = [torch.ones(1000).pin_memory() for _ in range(4)]
        pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
        done = threading.Event()

        def churn():
            while not done.is_set():
                torch.empty(1 << 20, device="cuda")
                torch.ones(100, pin_memory=True)

        threads = [threading.Thread(target=churn) for _ in range(2)]
        for thread in threads:
            thread.start()
        statuses = []
        for _ in range(60):
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(5)
                tensors.clear()
                pinned.clear()
                del pool, graph
                os._exit(0)
            statuses.append(os.waitpid(child, 0)[1])
            if statuses[-1]:
                break
        done.set()
        for thread in threads:
            thread.join(60)
        print(statuses == [0] * 60, tensors[0].sum().item(), pinned[0].sum().item())
        """
    ) == ["True 1000.0 1000.0"]
