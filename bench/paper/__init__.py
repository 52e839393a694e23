"""The tables and figures of the papers, and what only they need."""
