"""Capture: three ways in (TF1 graph code, a finished graph, a step function), one Model out."""
