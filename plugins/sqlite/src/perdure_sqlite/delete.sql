DELETE FROM journal
WHERE namespace = ? AND part = ? AND name = ? AND version = coalesce(?, version)
RETURNING version
