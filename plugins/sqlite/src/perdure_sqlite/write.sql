-- An append or a replace is one row inserted into this view, and so one statement: applied whole or not at all, and in
-- autocommit one commit. View and trigger are temporary: they are code of this release and no part of the file.
CREATE TEMP VIEW change AS SELECT
    NULL AS namespace, NULL AS part, NULL AS name,
    NULL AS expected,      -- the version that the key must have, 0: absent, NULL: any
    NULL AS first_version, -- the version of a key that is absent
    NULL AS keep,          -- how many items stay; NULL: it is an append
    NULL AS "group", NULL AS status, NULL AS data, NULL AS at,
    NULL AS added,         -- how many items come
    NULL AS pieces,        -- of several items: a JSON array with `offset << 32 | size` of each within `items`
    NULL AS items;

CREATE TEMP TRIGGER change_applied INSTEAD OF INSERT ON change BEGIN
    UPDATE journal SET
        version = version + 1,
        count = coalesce(NEW.keep, count) + NEW.added,
        rewritten = iif(NEW.keep IS NULL, rewritten, version + 1),
        data = coalesce(NEW.data, data),
        updated_at = max(updated_at, NEW.at)
    WHERE namespace = NEW.namespace AND part = NEW.part AND name = NEW.name
        AND version = coalesce(NEW.expected, version) AND count >= coalesce(NEW.keep, 0);

    -- Nothing was updated: the key is absent, or not as the writer saw it. (`changes()` is that of the statement above.)
    SELECT RAISE(ABORT, 'version conflict')
    WHERE changes() = 0 AND (coalesce(NEW.expected, 0) <> 0 OR NEW.keep IS NOT NULL);

    -- What is left may create the key. If it is there, it is another version's, and its uniqueness refuses the write.
    INSERT INTO journal (
        namespace, part, name, version, count, rewritten, "group", status, data, created_at, updated_at
    ) SELECT
        NEW.namespace, NEW.part, NEW.name, NEW.first_version, NEW.added, 0,
        NEW."group", NEW.status, coalesce(NEW.data, x''), NEW.at, NEW.at
    WHERE changes() = 0;

    -- Apart from the rest, because SQLite rewrites the indexes of every column that it sets, changed or not.
    UPDATE journal SET "group" = coalesce(NEW."group", "group"), status = coalesce(NEW.status, status)
    WHERE (NEW."group" IS NOT NULL OR NEW.status IS NOT NULL)
        AND namespace = NEW.namespace AND part = NEW.part AND name = NEW.name
        AND (coalesce(NEW."group", "group") IS NOT "group" OR coalesce(NEW.status, status) IS NOT status);

    DELETE FROM item
    WHERE NEW.keep IS NOT NULL
        AND place >= (SELECT id << 32 FROM journal WHERE namespace = NEW.namespace AND part = NEW.part AND name = NEW.name) + NEW.keep
        AND place <= (SELECT id << 32 | 0xffffffff FROM journal WHERE namespace = NEW.namespace AND part = NEW.part AND name = NEW.name);

    INSERT INTO item (place, data)
    SELECT (id << 32) + count - 1, NEW.items
    FROM journal
    WHERE NEW.added = 1 AND namespace = NEW.namespace AND part = NEW.part AND name = NEW.name;

    INSERT INTO item (place, data)
    SELECT
        (stored.id << 32) + stored.count - NEW.added + piece.key,
        coalesce(substr(NEW.items, (piece.value >> 32) + 1, piece.value & 0xffffffff), x'')
    FROM journal AS stored, json_each(NEW.pieces) AS piece
    WHERE NEW.added > 1 AND stored.namespace = NEW.namespace AND stored.part = NEW.part AND stored.name = NEW.name;
END;

-- The write that nearly all are, an append of one item that leaves group and status as they are: alone, because SQLite opens
-- every index that a trigger might touch, whether or not it does. Whatever else is asked for is refused here.
CREATE TEMP VIEW single_append AS SELECT
    NULL AS namespace, NULL AS part, NULL AS name, NULL AS expected, NULL AS "group", NULL AS status, NULL AS data, NULL AS at,
    NULL AS item;

CREATE TEMP TRIGGER single_append_applied INSTEAD OF INSERT ON single_append BEGIN
    UPDATE journal SET
        version = version + 1, count = count + 1, data = coalesce(NEW.data, data), updated_at = max(updated_at, NEW.at)
    WHERE namespace = NEW.namespace AND part = NEW.part AND name = NEW.name AND version = NEW.expected
        AND (NEW."group" IS NULL OR "group" IS NEW."group") AND (NEW.status IS NULL OR status IS NEW.status);

    SELECT RAISE(ABORT, 'not a single append') WHERE changes() = 0;

    INSERT INTO item (place, data)
    SELECT (id << 32) + count - 1, NEW.item
    FROM journal
    WHERE namespace = NEW.namespace AND part = NEW.part AND name = NEW.name;
END;
