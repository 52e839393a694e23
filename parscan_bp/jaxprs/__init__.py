"""Traced programs: read, interpreted, replayed, hoisted and cut."""
