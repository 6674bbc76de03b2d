"""The laws that every perdure store keeps, and the means to check them."""
