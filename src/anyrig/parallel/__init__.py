"""One module over a rig: scatter, replicas, gather, loss, shares; and processes, one a rank.

Nothing is imported here: a rank that is about to run a script imports from this room, and its torch
is the script's to import.
"""
