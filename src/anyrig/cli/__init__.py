"""The `anyrig` command: one file per command, which parses, calls and renders."""
