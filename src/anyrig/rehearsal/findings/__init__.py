"""What costs a program time, and what each change would save by the clock."""
