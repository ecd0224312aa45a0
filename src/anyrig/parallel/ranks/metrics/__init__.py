"""The mean over all ranks of a value, and the values of all ranks."""
