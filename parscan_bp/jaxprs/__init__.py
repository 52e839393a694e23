"""Traced programs: read, interpreted, replayed, hoisted and cut."""

import parscan_bp.jaxprs.calls  # noqa: F401  (says how calls are replayed)
