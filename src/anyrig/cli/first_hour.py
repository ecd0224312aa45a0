"""What `anyrig` prints without a command: the five commands to begin with."""

from __future__ import annotations

FIRST_HOUR = """\
anyrig runs a PyTorch model on any rig: no GPU, one, several unequal ones, several nodes.

Five commands for the first hour, with your own script, unchanged:

  anyrig devices                              which devices this machine has, and who uses them
  anyrig rehearse --rig 2xT4 train.py         run on virtual GPUs: errors, memory, time
  anyrig check train.py                       device mistakes in the source; nothing is run
  anyrig verify --rig 2xT4 train.py           do several GPUs compute what one GPU computes?
  anyrig run train.py                         run in one process per device, as torchrun does

anyrig --help lists all commands, anyrig COMMAND --help explains one, and anyrig
--install-completion completes them in your shell. The documentation begins with README.md.
"""
