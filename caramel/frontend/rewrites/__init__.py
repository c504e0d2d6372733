"""Rewrites of the captured graph into the plain form that the rest reads."""
