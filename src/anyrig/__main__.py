"""`python -m anyrig` is the command `anyrig`."""

from .cli.app import main

main()
