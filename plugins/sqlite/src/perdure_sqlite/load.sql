SELECT id << 32, rewritten, name, version, count, "group", status, data, created_at, updated_at
FROM journal
WHERE namespace = ? AND part = ? AND name = ?
