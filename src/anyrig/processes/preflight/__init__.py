"""What would prevent a group of ranks from starting, checked before it is started."""
