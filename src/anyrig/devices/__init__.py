"""Which devices exist, which are free, which to use."""
