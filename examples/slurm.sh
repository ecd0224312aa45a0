#!/bin/bash
# A job on several nodes, for Slurm: sbatch --nodes=4 examples/slurm.sh train.py --epochs 3
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1  # one launcher per node, which starts a rank for each device
#SBATCH --exclusive          # all devices of each node
#SBATCH --mem=0              # and all of its memory
set -euo pipefail

# The rendezvous endpoint, the same on every node: the first node of the job. The port depends on the
# job, and lies below 32768, where the system's ephemeral ports begin.
read -r first < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
endpoint=$first:$((10000 + SLURM_JOB_ID % 20000))

flags=(--nnodes "$SLURM_NNODES" --rdzv-endpoint "$endpoint" --rdzv-id "$SLURM_JOB_ID")

# srun anyrig doctor "${flags[@]}"  # check whether the job could start

# Let the task use all cores of its node; without --cpu-bind=none Slurm binds it to the first core.
srun --kill-on-bad-exit=1 --cpu-bind=none anyrig run "${flags[@]}" "$@"
