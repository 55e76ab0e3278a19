"""What every layer of a network did in each step, at almost no cost."""
