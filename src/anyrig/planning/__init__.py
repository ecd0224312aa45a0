"""What a program needs: rehearsed for several values and rigs, until the answer is known."""
