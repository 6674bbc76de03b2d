"""The promises: what the three stores take, give and keep."""
