"""How blocks are divided over unequal devices: the search behind `partition`."""
