"""The ways in: graphs, step functions and files."""
