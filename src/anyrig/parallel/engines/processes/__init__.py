"""Replicas in processes that this process starts, keeps and ends."""
