-- An append or a replace is one row inserted into this view, and so one statement: applied whole or not at all, and in
-- autocommit one commit. View and trigger are temporary: they are code of this release and not part of the file.
CREATE TEMP VIEW change AS SELECT
    NULL AS namespace, NULL AS part, NULL AS name,
    NULL AS expected,      -- the version that the key must have, 0: absent, NULL: any
    NULL AS first_version, -- the version of a key that is absent
    NULL AS keep,          -- how many items stay; NULL: it is an append
    NULL AS "group", NULL AS status, NULL AS data, NULL AS at,
    NULL AS added,         -- how many items come
    NULL AS pieces,        -- a JSON array with `offset << 32 | size` of each item within `items`
    NULL AS items;

CREATE TEMP TRIGGER change_applied INSTEAD OF INSERT ON change BEGIN
    SELECT RAISE(ABORT, 'version conflict')
    FROM (SELECT 1) LEFT JOIN journal AS stored
        ON stored.namespace = NEW.namespace AND stored.part = NEW.part AND stored.name = NEW.name
    WHERE coalesce(NEW.expected, stored.version, 0) <> coalesce(stored.version, 0)
        OR NEW.keep > coalesce(stored.count, -1);

    INSERT INTO journal (
        namespace, part, name, version, count, rewritten, "group", status, data, created_at, updated_at
    ) VALUES (
        NEW.namespace, NEW.part, NEW.name, NEW.first_version, NEW.added, 0,
        NEW."group", NEW.status, coalesce(NEW.data, x''), NEW.at, NEW.at
    ) ON CONFLICT (namespace, part, name) DO UPDATE SET
        version = version + 1,
        count = coalesce(NEW.keep, count) + NEW.added,
        rewritten = iif(NEW.keep IS NULL, rewritten, version + 1),
        data = coalesce(NEW.data, data),
        updated_at = max(updated_at, NEW.at);

    -- Apart from the rest, because SQLite rewrites the indexes of every column that it sets, changed or not.
    UPDATE journal SET "group" = coalesce(NEW."group", "group"), status = coalesce(NEW.status, status)
    WHERE namespace = NEW.namespace AND part = NEW.part AND name = NEW.name
        AND (coalesce(NEW."group", "group") IS NOT "group" OR coalesce(NEW.status, status) IS NOT status);

    DELETE FROM item
    WHERE NEW.keep IS NOT NULL AND id BETWEEN
        (SELECT id << 32 FROM journal WHERE namespace = NEW.namespace AND part = NEW.part AND name = NEW.name) + NEW.keep
        AND
        (SELECT id << 32 FROM journal WHERE namespace = NEW.namespace AND part = NEW.part AND name = NEW.name) + 0xffffffff;

    INSERT INTO item (id, data)
    SELECT
        (stored.id << 32) + stored.count - NEW.added + piece.key,
        coalesce(substr(NEW.items, (piece.value >> 32) + 1, piece.value & 0xffffffff), x'')
    FROM journal AS stored, json_each(NEW.pieces) AS piece
    WHERE stored.namespace = NEW.namespace AND stored.part = NEW.part AND stored.name = NEW.name;
END;
