"""Loaders over ranks: each rank its part of every global batch."""
