"""Processes, one per rank: how they start, how they are watched, how they end.

This package does not depend on models. Each rank imports it before its script, so its modules
import torch only where they use it. `launch` is `anyrig.launch`.
"""
