-- The third column: whether there is an item behind those that are counted, which a damaged count would hide.
SELECT
    id << 32, rewritten, count < 0 OR EXISTS (SELECT 1 FROM item WHERE place = (journal.id << 32) + count),
    name, version, count, "group", status, data, created_at, updated_at
FROM journal
WHERE namespace = ? AND part = ? AND name = ?
