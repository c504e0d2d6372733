"""Parameter servers: what runs on them, which server has which variables, and in which order workers receive them."""
