INSERT INTO single_append (namespace, part, name, expected, "group", status, data, at, item) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
