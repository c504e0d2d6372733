"""The default policy: a search over thresholds, windows and fills, with its bound."""
