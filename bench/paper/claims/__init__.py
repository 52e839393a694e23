"""What the papers claim, beside what our records say of it."""
