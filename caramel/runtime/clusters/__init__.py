"""Where a distributed graph runs."""
