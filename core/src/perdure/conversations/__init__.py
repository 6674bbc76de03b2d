"""What concerns conversations whole, across the three stores: claims, deleting, pruning, listing them all."""
