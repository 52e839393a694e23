"""Other people's programs, as they are and by `parscan_bp.replace_scans`."""
