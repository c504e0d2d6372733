"""Measurements: of a program, and of a network."""
