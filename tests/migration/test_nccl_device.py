"""ARC211 reports ranks that all compute on GPU 0, and no rank that may have chosen a GPU."""

import pytest
from checked_texts import found

START = (
    "import os\nimport torch\nimport torch.distributed as dist\n"
    "from torch.nn.parallel import DistributedDataParallel as DDP\n"
)
NCCL = 'dist.init_process_group("nccl")\n'


@pytest.mark.parametrize(
    "text",
    [
        f"{NCCL}Net().cuda()\n",
        'dist.init_process_group(backend="nccl-legacy")\nNet().to("cuda")\n',
        'dist.init_process_group("cpu:gloo,cuda:nccl2")\nd = torch.device("cuda")\nNet().to(d)\n',
        f'{NCCL}d = "cuda" if torch.cuda.is_available() else "cpu"\nNet().to(d)\n',
    ],
)
def test_ranks_that_select_no_gpu(text: str) -> None:
    assert [code for code, _ in found(START + text, "ARC211")] == ["ARC211"]


@pytest.mark.parametrize(
    "text",
    [
        'dist.init_process_group("gloo")\nNet().cuda()\n',
        "dist.init_process_group(backend)\nNet().cuda()\n",
        'dist.init_process_group("nccl", **options)\nNet().cuda()\n',
        'dist.init_process_group("nccl", device_id=torch.device("cuda", r))\nNet().cuda()\n',
        f"torch.accelerator.set_device_index(r)\n{NCCL}Net().cuda()\n",
        f'os.environ["CUDA_VISIBLE_DEVICES"] = str(r)\n{NCCL}Net().cuda()\n',
        f"{NCCL}with torch.cuda.device(r):\n    Net().cuda()\n",
        f"{NCCL}DDP(Net().cuda(), device_ids=[r])\n",
        f'{NCCL}d = torch.device(f"cuda:{{r}}")\nprint("cuda")\n',
        f'{NCCL}Net().to(local_rank)\nprint("cuda")\n',
        NCCL,
    ],
)
def test_ranks_that_may_select_one(text: str) -> None:
    assert found(START + text, "ARC211") == []


def test_any_decorator_may_guard() -> None:
    program = """
        import pytest, torch

        @pytest.mark.slow
        @pytest.mark.skipif(not torch.cuda.is_available(), reason="slow")
        def test_one():
            model = torch.nn.Linear(2, 2).cuda()
        """
    assert not found(program, "ARC201")
    assert found(program.replace("not torch.cuda.is_available()", "True"), "ARC201")


def test_the_third_argument_of_upsample_is_its_mode() -> None:
    program = """
        import torch
        from torch import nn
        from torch.autograd import Variable
        x = Variable(torch.ones(1))
        up = nn.Upsample(None, 2, "bilinear")
        """
    assert found(program, "ARC105") == [("ARC105", 6)]


def test_cuda_that_starts_with_the_module_is_before_its_functions() -> None:
    program = """
        import os
        import torch
        count = torch.cuda.is_available()
        def main():
            os.environ["CUDA_VISIBLE_DEVICES"] = "1"
        """
    assert [code for code, _ in found(program, "ARC204")] == ["ARC204"]
