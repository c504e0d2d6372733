"""Measurements of Caramel, and what they are made on."""
