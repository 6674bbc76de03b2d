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

-- The journals that a conversation has besides its approvals, by the name of any of its journals.
local function main_journals(journal, part, id)
  local stem, conversation = string.sub(journal, 1, -#part - #id - 2), string.match(id, '^[^.]*')
  return {stem .. 'sessions:' .. conversation, stem .. 'runs:' .. conversation, stem .. 'runs:' .. conversation .. '.run'}
end

local function due_of(index)
  return (string.gsub(index, 'index:(%a+)$', 'due:%1'))
end

-- A few of a part that are due. They are read before the first write, so that a list of a wrong type is found before it. A write
-- that sets no end can do without them, while the list is on its way to another server of a cluster: it gets nothing then.
local function overdue(due, at, needed)
  local found = redis.pcall('ZRANGEBYSCORE', due, '-inf', at, 'LIMIT', 0, 3)
  if not found.err then return found end
  if needed or string.find(found.err, 'WRONGTYPE', 1, true) then error(found.err) end
end

-- Take those off the index that have expired. One that was written since is due later, or never. This comes behind the writes
-- of others and must not fail: what is in the place of a journal and is none has no members, what cannot be read has to wait.
local function sweep_one(index, part, due, member, at)
  local gone = parse(FORMAT .. ' 0 0 0 0 ' .. member)
  if not gone then return take(due, {member}) end
  local id = gone.data
  local journal = journal_of(ARGV[3], part, id)
  local text = redis.pcall('LINDEX', journal, 0)
  if type(text) ~= 'table' or string.find(text.err, 'WRONGTYPE', 1, true) then
    local live, left, names, later = type(text) == 'string' and parse(text), -1, {}, ''
    if live and not live.version then live = gone end -- a newer release's: its members, too, are left until it has ended
    if live then -- its members are there: whoever wrote it put them there
      names, later = members(filters(live), ALL, id, live.created, live.updated), signature(id, live)
      left = redis.call('PTTL', journal)
    end
    if left >= 0 then redis.pcall('ZADD', due, at + left, later) end
    take(due, left >= 0 and without({member}, {later}) or {member})
    take(index, without(members(filters(gone), ALL, id, gone.created, gone.updated), names))
  end
end

local function sweep(index, part, found, at)
  for _, member in ipairs(found) do sweep_one(index, part, due_of(index), member, at) end
end

-- All journals there are of the conversation of the write. What will have an end and has none yet is not
-- in the list of what is due, so its head is read: `due` is what to put there. All of it comes before the first write.
local function whole_conversation(operations, ttl)
  local base, found = 2 * operations, {}
  local id = string.match(ARGV[6], '^[^.]*')
  local function look(journal, name, part)
    local left = redis.call('PTTL', journal)
    if left ~= -2 then
      local head = ttl > 0 and left == -1 and parse(redis.call('LINDEX', journal, 0))
      found[journal] = {part = part, due = head and head.version and signature(name, head)}
    end
  end
  look(KEYS[base + 1], id, 1)
  look(KEYS[base + 2], id, 2)
  look(KEYS[base + 3], id .. '.run', 2)
  local group = 'ig' .. #id .. ':' .. id
  for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[base + 8], '[' .. group, '(' .. group .. '\255')) do
    local name = string.sub(member, #group + 1)
    look(journal_of(ARGV[3], 'approvals', name), name, 3)
  end
  return found
end

-- Whoever writes last says how long the conversation is kept, as a whole: all its journals for as long, or for ever.
-- An index, and what is due of it, lasts as long as the last journal in it; with one that has no end, for ever.
local function put_off(ttl, at, operations, conversation, index_ends)
  for n = 1, operations do
    conversation[KEYS[2 * n - 1]] = {} -- `store` has put it on the list
  end
  for journal, one in pairs(conversation) do
    if one.due then redis.call('ZADD', KEYS[2 * operations + 3 + 2 * one.part], at + ttl, one.due) end
    if ttl > 0 then redis.call('PEXPIRE', journal, ttl) else redis.call('PERSIST', journal) end
  end
  for key, left in pairs(index_ends) do
    for _, name in ipairs({KEYS[key], KEYS[key + 1]}) do
      if ttl > 0 and left ~= -1 then
        redis.call('PEXPIRE', name, math.max(left, ttl))
      else
        redis.call('PERSIST', name)
      end
    end
  end
end
