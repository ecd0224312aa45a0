#!/bin/bash
# Two nodes: rehearsed on one computer, then two launchers, as they would run on two machines.
#
#     bash examples/two_nodes.sh
set -euo pipefail
cd "$(dirname "$0")"

# Nodes with two GPUs each, and the network between them: all of it is simulated.
anyrig rehearse --rig '2x(2xT4)@10Gbit/s' --nproc-per-device 1 one_script.py

# On two machines, run this on each, with the name of the first in place of localhost. A launcher that
# is started alone waits for the other.
launch() {
  anyrig run --device cpu --nnodes 2 --rdzv-endpoint "localhost:${PORT:-29471}" --rdzv-id two-nodes \
    one_script.py
}
launch &
launch
wait
