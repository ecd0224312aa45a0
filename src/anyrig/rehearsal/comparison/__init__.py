"""One program on several virtual rigs: whether it fits, how fast it is, and what it costs."""
