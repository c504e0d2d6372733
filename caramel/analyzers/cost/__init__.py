"""What transfers cost on a network, and what a step with them takes."""
