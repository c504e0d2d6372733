"""Analyzers: pure functions from a Model and other facts to one fact; policies are analyzers."""
