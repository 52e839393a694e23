"""Small programs around packages of others: `program()` gives a loss and its arguments."""
