"""Workers: they find the turns that nobody runs, and finish them."""
