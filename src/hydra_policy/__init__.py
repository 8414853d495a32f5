"""Job sizes for peers of unequal speed."""
