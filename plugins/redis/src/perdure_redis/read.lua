-- Read the head and some of the items as of one instant.
-- KEYS: the journal. ARGV: how many items to skip and how many to give at most; or -1 and how many of the newest.
-- Answer: nothing if there is no such journal, or the head and the items.
local head = redis.call('LINDEX', KEYS[1], 0)
if not head then return {} end
local skip, most = tonumber(ARGV[1]), tonumber(ARGV[2])
if skip < 0 then return {head, redis.call('LRANGE', KEYS[1], math.max(1, redis.call('LLEN', KEYS[1]) - most), -1)} end
return {head, redis.call('LRANGE', KEYS[1], skip + 1, skip + most)}
