INSERT INTO change (
    namespace, part, name, expected, first_version, keep, "group", status, data, at, added, pieces, items
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
