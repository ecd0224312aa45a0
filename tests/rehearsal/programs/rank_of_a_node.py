"""A rank says where it is, and fails as it is told: ``rank_of_a_node.py [FAILING_ATTEMPT]``."""

import os
import sys

print("torch" in sys.modules, sys.argv[1:])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import anyrig  # noqa: E402

WORDS = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

device = anyrig.Rig.detect().lead.torch_device
torch.cuda.set_device(device)
dist.init_process_group(device_id=device)
kept = torch.full((100 * 2**18,), float(os.environ["RANK"]), device=device)  # 100 MiB
dist.all_reduce(kept)
free, _ = torch.cuda.mem_get_info()
print(*(os.environ[word] for word in WORDS), torch.cuda.device_count(), device, kept[0].item())
print("used MiB", 1024 - free // 2**20)
dist.barrier()
if sys.argv[1:] == [os.environ["TORCHELASTIC_RESTART_COUNT"]] and dist.get_rank() == 2:
    raise RuntimeError("the disk is on fire")
dist.barrier()
dist.destroy_process_group()
