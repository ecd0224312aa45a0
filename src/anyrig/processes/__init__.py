"""Processes, one per rank: how they start, how they are watched, how they end.

Nothing here knows of models. A rank that is about to run a script imports from this room, so its
files import torch only where they use it. `launch` is `anyrig.launch`.
"""
