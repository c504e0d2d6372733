"""Graphs as data: an indexed GraphDef, device strings, knowledge about ops, and the verifier."""
