"""Finds device mistakes in a script and uses of what PyTorch has changed, and rewrites them.

Nothing here runs the script or imports torch. `check` is the entry point.
"""
