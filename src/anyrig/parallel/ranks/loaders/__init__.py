"""Loaders that yield one rank's part of every global batch."""
