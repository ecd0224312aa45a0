"""Injected failures: what a program does when a rank dies, slows down or loses its network."""
