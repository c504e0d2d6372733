"""From options to a plan, and from a plan to a distributed model."""
