"""What every bench shares: how one is declared, timing, programs, records, tables, figures."""
