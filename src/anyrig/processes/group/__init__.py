"""The group of ranks that this process belongs to, and waits that name missing ranks."""
