"""A group of ranks: who belongs to it, and how the ranks wait for each other by name."""
