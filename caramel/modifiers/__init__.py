"""Modifiers: functions `Emission -> Emission` that change one thing each and never analyse."""
