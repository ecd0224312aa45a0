"""A model whose layers are divided over several devices, and its batches into micro-batches."""
