"""What costs a program time, and what each change would save on the virtual clock."""
