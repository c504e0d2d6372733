"""The command ``caramel``."""
