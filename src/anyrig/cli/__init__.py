"""The `anyrig` command: one file a command; each parses, calls and renders."""
