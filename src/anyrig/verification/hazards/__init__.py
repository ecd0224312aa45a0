"""Mistakes that raise no error and change what a program learns, found while it runs.

::

    watch.py ── watch_hazards: starts and stops all that follows
      ├─ saved values ──── kernel_values.py    virtual GPUs: the kernels see every write
      │                    summed_values.py    other devices, if asked: sums of the bytes
      ├─ observer.py ───── what the program does with PyTorch, as events
      └─ checks/ ───────── one hazard per file: keeps what it needs of the events, and decides
                           in a function without effects
"""
