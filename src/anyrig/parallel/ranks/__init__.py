"""A group of processes, one a rank: how it starts, how it ends, and what it leaves to be read."""
