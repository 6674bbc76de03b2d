-- The journals that do not have the items that they count: one after the other from 0 on.
SELECT namespace, part, name, stored.count, found.number, coalesce(found.newest - (stored.id << 32) + 1, 0)
FROM journal AS stored
LEFT JOIN (
    SELECT place >> 32 AS owner, count(*) AS number, max(place) AS newest FROM item GROUP BY place >> 32
) AS found ON found.owner = stored.id
WHERE stored.count <> coalesce(found.number, 0) OR stored.count <> coalesce(found.newest - (stored.id << 32) + 1, 0)
