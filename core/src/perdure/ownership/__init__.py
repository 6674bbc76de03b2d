"""Who owns a conversation: claims and leases, the journal of an owner, and the version it holds."""
