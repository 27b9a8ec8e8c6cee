"""Runs without a fault, on which every rule must stay silent; at most eight, shared by all drills."""
