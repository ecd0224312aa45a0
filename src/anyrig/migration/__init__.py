"""Finds what a script does wrong with devices, or as PyTorch no longer does it, and rewrites it.

Nothing here runs the script or imports torch. `check` is the way in.
"""
