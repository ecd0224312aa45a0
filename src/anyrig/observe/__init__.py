"""What the program of this process does and has: its events, models, tensors and lines.

::

    events.py       what can be subscribed to: calls of modules, backward passes, steps, …
    hooks.py        the only file that hooks PyTorch: while there is a subscriber, and no longer
    names.py        the names of modules
    census.py       the models, optimizers, tensors and variables that exist
    storages.py     the memory behind tensors
    source_line.py  the line that is running
"""
