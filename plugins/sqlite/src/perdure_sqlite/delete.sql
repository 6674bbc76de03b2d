DELETE FROM journal
WHERE namespace = :namespace AND part = :part AND name = :name AND version = coalesce(:expected, version)
RETURNING version
