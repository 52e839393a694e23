"""Scans that people write."""
