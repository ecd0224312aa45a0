"""Remedies for a program that runs out of memory, rehearsed before they are promised."""
