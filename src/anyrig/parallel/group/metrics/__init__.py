"""Values over ranks: their means, and all of them."""
