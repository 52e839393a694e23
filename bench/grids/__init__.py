"""Timing over grids of programs."""
