"""Ranks say where they are. The last fails: the first attempt at once, the second at its end."""

import os
import sys

WORDS = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

is_first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
fails = os.environ["RANK"] == "2"
if is_first_attempt and fails:
    sys.exit(3)
had_torch = "torch" in sys.modules

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import anyrig  # noqa: E402

device = anyrig.Rig.detect().lead.torch_device
torch.cuda.set_device(device)
dist.init_process_group(device_id=device)
kept = torch.full((100 * 2**18,), float(os.environ["RANK"]), device=device)  # 100 MiB
dist.all_reduce(kept)
free, total = torch.cuda.mem_get_info()
print(*(os.environ[word] for word in WORDS), torch.cuda.device_count(), device, kept[0].item())
print(had_torch, sys.argv[1:], "holds MiB", (total - free) // 2**20)
dist.barrier()
if fails:
    raise RuntimeError("the disk is on fire")
dist.barrier()
dist.destroy_process_group()
