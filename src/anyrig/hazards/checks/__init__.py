"""One hazard per file: what a check keeps of the events, and when it reports."""
