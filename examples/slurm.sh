#!/bin/bash
# A job of several machines, for Slurm: sbatch --nodes=4 examples/slurm.sh train.py --epochs 3
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1  # one anyrig a machine, which starts a rank for each device there
#SBATCH --exclusive          # all devices of each machine, however many it has
#SBATCH --mem=0              # and all of its memory
set -euo pipefail

# Every machine names the same place to meet: the first machine of the job, at a port that hardly
# any other job there has. Below 32768, where the system takes ports by itself.
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
meeting_place=$first:$((10000 + SLURM_JOB_ID % 20000))

flags=(--nnodes "$SLURM_NNODES" --rdzv-endpoint "$meeting_place" --rdzv-id "$SLURM_JOB_ID")

# srun anyrig doctor "${flags[@]}"  # what would keep it from starting

# One task may use all cores of its machine; without --cpu-bind=none Slurm ties it to the first.
srun --kill-on-bad-exit=1 --cpu-bind=none anyrig run "${flags[@]}" "$@"
