"""Copies of a module on other devices, called side by side."""
