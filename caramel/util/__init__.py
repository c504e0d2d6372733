"""Small helpers that know nothing of graphs or training."""
