"""A pipeline over the ranks of a process group: one or several stages on each rank."""
