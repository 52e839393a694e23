"""Which solver, where none was named."""
