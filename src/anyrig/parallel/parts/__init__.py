"""A batch divided between devices, and joined again."""
