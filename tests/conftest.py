"""What all tests start from."""

import signal

# A shell ignores Ctrl-C for what it starts in the background, and processes inherit that: the tests
# that interrupt one would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
