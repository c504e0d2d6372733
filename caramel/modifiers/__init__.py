"""Modifiers: functions (graph, plan, ...) -> graph that change one thing each and never analyse."""
