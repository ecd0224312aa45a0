"""How any module becomes a chain of blocks."""
