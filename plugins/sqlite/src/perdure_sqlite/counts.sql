-- The journals that do not have the items that they count: one after the other from 0 on.
SELECT namespace, part, name, stored.count, found.number, coalesce(found.newest - (stored.id << 32) + 1, 0)
FROM journal AS stored
LEFT JOIN (
    SELECT id >> 32 AS owner, count(*) AS number, max(id) AS newest FROM item GROUP BY id >> 32
) AS found ON found.owner = stored.id
WHERE stored.count <> coalesce(found.number, 0) OR stored.count <> coalesce(found.newest - (stored.id << 32) + 1, 0)
