"""What would keep a group of ranks from starting, found before it is started."""
