INSERT INTO change (
    namespace, part, name, expected, first_version, keep, "group", status, data, at, added, pieces, items
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
RETURNING (
    SELECT version FROM journal
    WHERE journal.namespace = change.namespace AND journal.part = change.part AND journal.name = change.name
)
