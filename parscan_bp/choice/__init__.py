"""Which solver, where none was named."""

from parscan_bp import store as store
