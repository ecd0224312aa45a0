"""What a rank does together with the others of its process group."""
