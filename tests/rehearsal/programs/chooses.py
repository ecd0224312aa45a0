"""Chooses a GPU, and says which; with an argument, has others choose meanwhile.

Another process of the rehearsal gets another GPU; another rehearsal has GPUs of its own.
"""

import subprocess
import sys

import anyrig

with anyrig.choose() as choice:
    print(choice.rig.lead.text, flush=True)
    if len(sys.argv) > 1:
        subprocess.run([sys.executable, __file__], check=True)
        anew = [sys.executable, "-m", "anyrig", "rehearse", "--rig", "3xT4", __file__]
        subprocess.run(anew, check=True)
