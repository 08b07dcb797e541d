"""Carries out what the election orders."""
