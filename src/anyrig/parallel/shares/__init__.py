"""How much of each batch each device gets."""
