"""Parameter servers: in which order a worker pulls its parameters, after TicTac. Pure algorithms."""
