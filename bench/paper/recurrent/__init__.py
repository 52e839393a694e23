"""Recurrent networks: bitstreams (BPPSA 4.1) and audio (4.2)."""
