"""Runtime: clusters behind one interface, and the session that trains on them."""
