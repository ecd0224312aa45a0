"""The causes of differences, one function each."""
