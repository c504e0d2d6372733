"""The machine, and processes of this library's own on it."""
