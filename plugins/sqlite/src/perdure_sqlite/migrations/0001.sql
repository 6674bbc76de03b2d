-- One row a key. `id` places the key's items; it is never shown.
CREATE TABLE journal (
    id INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    part TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    count INTEGER NOT NULL,
    rewritten INTEGER NOT NULL,
    "group" TEXT,
    status TEXT,
    data BLOB NOT NULL,
    created_at INTEGER NOT NULL, -- microseconds since 1970, UTC
    updated_at INTEGER NOT NULL,
    UNIQUE (namespace, part, name)
) STRICT;

-- Each order of a listing, with and without a filter, is the order of an index: a page costs what it returns. A key without
-- a group, or without a status, is in no index of them, and its appends do not pay for one.
CREATE INDEX journal_created ON journal (namespace, part, created_at, name);
CREATE INDEX journal_updated ON journal (namespace, part, updated_at, name);
CREATE INDEX group_name ON journal (namespace, part, "group", name) WHERE "group" IS NOT NULL;
CREATE INDEX group_created ON journal (namespace, part, "group", created_at, name) WHERE "group" IS NOT NULL;
CREATE INDEX group_updated ON journal (namespace, part, "group", updated_at, name) WHERE "group" IS NOT NULL;
CREATE INDEX status_name ON journal (namespace, part, status, name) WHERE status IS NOT NULL;
CREATE INDEX status_created ON journal (namespace, part, status, created_at, name) WHERE status IS NOT NULL;
CREATE INDEX status_updated ON journal (namespace, part, status, updated_at, name) WHERE status IS NOT NULL;

-- Item n of a key has the place `journal.id << 32 | n`. Items lie in the order in which they came, so that what is written by
-- all keys fills the same page to its end; an index, whose rows are a hundredth of an item, tells where each is.
CREATE TABLE item (
    id INTEGER PRIMARY KEY,
    place INTEGER NOT NULL UNIQUE,
    data BLOB NOT NULL
) STRICT;

-- Here and not in the code, so that no tool can leave items behind, which a later key with the same id would inherit.
CREATE TRIGGER journal_deleted AFTER DELETE ON journal BEGIN
    DELETE FROM item WHERE place BETWEEN OLD.id << 32 AND OLD.id << 32 | 0xffffffff;
END;
