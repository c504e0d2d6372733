"""What is written down while the program differentiates."""
