"""An LMDB store for perdure."""
