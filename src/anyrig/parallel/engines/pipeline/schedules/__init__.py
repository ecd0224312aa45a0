"""The order in which each device of a pipeline computes, as pure functions."""
