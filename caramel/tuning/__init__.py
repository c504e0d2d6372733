"""Tuning: a plan's limits tried live, in an order that Bayesian optimisation chooses."""
