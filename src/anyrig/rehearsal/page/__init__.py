"""The facts of a rehearsal as one HTML page that needs no network."""
