-- Time to live. Journals expire by themselves, their members of the index do not: the list of what is due says which those are.
-- It is a sorted set: the score is a time in milliseconds, the member has all that those members are made of.

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The fields of a head with the id in place of the data.
local function signature(id, head)
  local group, status = head.group, head.status
  return head.created .. ' ' .. head.updated .. ' ' .. (group and #group or '-') .. ' ' .. (status and #status or '-') .. '\n'
    .. (group or '') .. (status or '') .. id
end

-- Take a few journals that have expired off the index. One that was written since is due later.
local function sweep(index, due, part)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now(), 'LIMIT', 0, 3)) do
    local gone = parse(FORMAT .. ' 0 0 0 0 ' .. member)
    local id = gone.data
    local journal = journal_of(ARGV[3], part, id)
    local text = redis.call('LINDEX', journal, 0)
    local live = text and parse(text)
    redis.call('ZREM', due, member)
    remove(index, members(filters(gone), ALL, id, gone.created, gone.updated))
    if live and live.version then
      add(index, members(filters(live), ALL, id, live.created, live.updated))
      local left = redis.call('PTTL', journal)
      if left >= 0 then redis.call('ZADD', due, now() + left, signature(id, live)) end
    end
  end
end

-- A conversation expires as a whole: each write puts off the end of all its journals.
local function refresh(ttl, operations)
  local id = string.match(ARGV[6], '^[^.]*')
  for n = 1, operations do redis.call('PEXPIRE', KEYS[3 * n - 2], ttl) end
  for n = 1, 3 do redis.call('PEXPIRE', KEYS[3 * operations + n], ttl) end
  local group = 'ig' .. #id .. ':' .. id
  for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[#KEYS - 1], '[' .. group, '(' .. group .. '\255')) do
    redis.call('PEXPIRE', journal_of(ARGV[3], 'approvals', string.sub(member, #group + 1)), ttl)
  end
end
