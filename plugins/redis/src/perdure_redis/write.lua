-- Apply operations of one conversation, all or none: every check comes before the first write, and a script is not interrupted.
-- The names of the keys and the format of what is in them are on the reference page of the backend. No number here needs more
-- than the 53 bits of a double: versions and instants stay text.
--
-- KEYS: for each operation its journal and its part's index. Where the end of the conversation is set, also the three journals
--       that it has besides its approvals, and of all three parts the index and the list of what is due to expire.
-- ARGV: how many operations; the time to live in milliseconds, 0 for none; what the names of journals begin with; then for each
--       operation: kind (A, R, D), part, id, expected version or "", first version (A) or how many items to keep (R), instant,
--       group, status and data, each "" to keep it or "=" and the value; birth and version of what was last seen, or ""; the number
--       of items; the items.
-- Answer: "ok" and for each operation version and birth, or why not: "conflict", "back", "damaged" or "format", with the number
--       of the operation, then what is there; or "ends": it needs the keys of the whole conversation, whose end it takes away.
local operations, ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local whole = #KEYS > 2 * operations
local plan, at, clock = {}, 4, nil

-- Whether a write that sets no end has to take one away: of the conversation, or of an index.
local function ends(journal, index, part, id, new)
  if not new then return redis.call('PTTL', journal) >= 0 end
  for _, other in ipairs(main_journals(journal, part, id)) do
    if redis.call('PTTL', other) >= 0 then return true end
  end
  return redis.call('PTTL', index) >= 0
end

for n = 1, operations do
  local kind, expected, number, seen, first = ARGV[at], ARGV[at + 3], ARGV[at + 4], ARGV[at + 9], at + 11
  local journal, index = KEYS[2 * n - 1], KEYS[2 * n]
  local old = redis.call('LINDEX', journal, 0)
  local actual, born, count = '0', '', -1
  if old then
    old = parse(old)
    if not old then return {'damaged', n} end
    if not old.version then return {'format', n, old.format} end
    actual, born, count = old.version, birth(old), old.count
    if seen ~= '' and kind ~= 'D' and seen ~= born .. ' ' .. actual then
      local seen_born, version = string.match(seen, '^(.*) (%d+)$')
      if seen_born == born and older(actual, version) then return {'back', n, actual, born} end
    end
  end
  if (expected ~= '' and expected ~= actual) or (kind == 'R' and tonumber(number) > count) then
    return {'conflict', n, actual, born}
  end
  if not whole and kind ~= 'D' and ends(journal, index, ARGV[at + 1], ARGV[at + 2], not old) then return {'ends'} end
  -- An index of a wrong type is found before any write: by this, or by the one append's own first command.
  if operations > 1 or whole or kind ~= 'A' then redis.call('ZCARD', index) end
  local found
  if whole or not old or kind == 'D' then
    clock = clock or now()
    found = overdue(due_of(index), clock, whole)
  end
  plan[n] = {at = at, old = old, first = first, last = first + ARGV[first - 1] - 1, found = found}
  at = plan[n].last + 1
end

local conversation, index_ends = {}, {}
if whole then
  conversation = whole_conversation(operations, ttl)
  for key = 2 * operations + 4, #KEYS, 2 do
    redis.call('ZCARD', KEYS[key])
    redis.call('ZCARD', KEYS[key + 1])
    index_ends[key] = redis.call('PTTL', KEYS[key])
  end
end

local function keep(given, old)
  if given == '' then return old end
  return string.sub(given, 2)
end

-- The first command is one that the server refuses when it is out of memory or may not write.
local function store(n, at, head, first, last)
  local kind, id, instant = ARGV[at], ARGV[at + 2], ARGV[at + 5]
  local journal, index = KEYS[2 * n - 1], KEYS[2 * n]
  local new = not head
  head = head or {
    version = ARGV[at + 4], count = 0, rewritten = '0', first = ARGV[at + 4], created = instant, updated = instant, data = '',
  }
  local updated, group, status, before = head.updated, head.group, head.status, not new and filters(head)
  local due_before = ttl > 0 and signature(id, head)
  if not new then
    head.version = successor(head.version)
    if instant > updated then head.updated = instant end -- 18 digits each
  end
  if kind == 'R' then head.rewritten, head.count = head.version, tonumber(ARGV[at + 4]) end
  head.count = head.count + last - first + 1
  head.group, head.status = keep(ARGV[at + 6], head.group), keep(ARGV[at + 7], head.status)
  head.data = keep(ARGV[at + 8], head.data)

  local moved = not new and (head.group ~= group or head.status ~= status)
  local after = (moved or new) and filters(head) or before
  if new then
    add(index, members(after, ALL, id, head.created, head.updated))
    redis.call('RPUSH', journal, format(head))
  else
    local names, gone
    if moved or updated ~= head.updated then
      local orders = moved and ALL or RECENT
      names = members(after, orders, id, head.created, head.updated)
      gone = members(before, orders, id, head.created, updated)
      if moved then gone = without(gone, names) end -- else they are all others: each has the instant in it
      add(index, names)
    end
    redis.call('LSET', journal, 0, format(head))
    if kind == 'R' then redis.call('LTRIM', journal, 0, ARGV[at + 4]) end
    if names and take(index, gone) < #gone then -- the index was lost: put back what belongs there
      add(index, members(after, ALL, id, head.created, head.updated))
    end
  end
  for from = first, last, 4000 do -- `unpack` has a limit
    redis.call('RPUSH', journal, unpack(ARGV, from, math.min(from + 3999, last)))
  end
  if ttl > 0 then
    local due = signature(id, head)
    redis.call('ZADD', due_of(index), clock + ttl, due)
    take(due_of(index), without({due_before}, {due}))
  end
  return head.version, birth(head)
end

local answer = {'ok'}
for n = 1, operations do
  local op = plan[n]
  if ARGV[op.at] == 'D' then
    answer[2 * n], answer[2 * n + 1] = op.old and op.old.version or '0', ''
  else
    answer[2 * n], answer[2 * n + 1] = store(n, op.at, op.old, op.first, op.last)
  end
end
if whole then put_off(ttl, clock, operations, conversation, index_ends) end
for n = 1, operations do
  local op, index = plan[n], KEYS[2 * n]
  local id, old = ARGV[op.at + 2], op.old
  if ARGV[op.at] == 'D' and old then
    redis.call('DEL', KEYS[2 * n - 1])
    take(index, members(filters(old), ALL, id, old.created, old.updated))
    take(due_of(index), {signature(id, old)})
  end
end
for n = 1, operations do
  if plan[n].found then sweep(KEYS[2 * n], ARGV[plan[n].at + 1], plan[n].found, clock) end
end
return answer
