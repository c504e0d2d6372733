"""The network: how long an all-reduce takes, measured or given; and the choice that follows."""
