-- The journals that do not have the items that they count: one after the other from 0 on.
SELECT namespace, part, name, stored.count, count(place) AS number, coalesce(max(place) - (stored.id << 32) + 1, 0) AS reach
FROM journal AS stored
LEFT JOIN item ON place BETWEEN stored.id << 32 AND stored.id << 32 | 0xffffffff
GROUP BY stored.id
HAVING stored.count <> number OR stored.count <> reach
