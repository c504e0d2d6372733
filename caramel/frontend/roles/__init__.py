"""What each part of a captured graph is for."""
