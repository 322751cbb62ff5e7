"""Data sets: where they come from, how they are read, and one made of nothing."""
