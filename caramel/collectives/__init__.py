"""Collectives: schedules as data, a symbolic checker, and their lowering to native ops."""
