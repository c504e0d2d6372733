"""Policies: analyzers that decide order, buckets, windows and depths."""
