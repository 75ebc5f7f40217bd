"""Which ranks still live, and which call each of them is in."""
