"""Checks that find what would prevent a group of ranks from starting."""
