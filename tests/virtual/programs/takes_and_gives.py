"""Reserve and release memory of four GPUs at random, then print the bytes held.

``takes_and_gives.py LIBRARY FOLDER SEED``. Processes with every third seed kill themselves.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from ledger_process import GPU_BYTES, Ledger

seed = int(sys.argv[3])
ledger = Ledger(ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]))
chance = random.Random(seed)
held: list[tuple[int, int]] = []
print("joined", flush=True)
sys.stdin.readline()  # all start at once
for turn in range(10_000):
    if seed % 3 == 0 and turn == 1000 + seed * 100:
        os.kill(os.getpid(), signal.SIGKILL)
    if held and chance.random() < 0.5:
        ledger.release(*held.pop(chance.randrange(len(held))))
    else:
        piece = chance.randrange(4), chance.randrange(1, 300)
        if ledger.reserve(*piece):
            held.append(piece)
        if turn % 10 == 0:  # locked: an unlocked sum may count bytes twice
            assert sum(ledger.processes(piece[0]).values()) <= GPU_BYTES
print(*(sum(size for gpu, size in held if gpu == index) for index in range(4)), flush=True)
sys.stdin.readline()
ledger.leave()
