"""Measurements of a GPU, real or virtual, by the same programs."""
