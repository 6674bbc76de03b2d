-- Apply operations of one conversation, all or none: every check comes before the first write, and a script is not interrupted.
-- The names of the keys and the format of what is in them are in README.md. No number here needs more than the 53 bits of a
-- double: versions and instants stay text.
--
-- KEYS: for each operation its journal and its part's index, and where there is a time to live its part's list of what is due to
--       expire; there also, at the end, the three journals that a conversation has besides its approvals, and index and list of
--       all three parts.
-- ARGV: how many operations; the time to live in milliseconds, 0 for none; what the names of journals begin with; then for each
--       operation: kind (A, R, D), part, id, expected version or "", first version (A) or how many items to keep (R), instant,
--       group, status and data, each "" to keep it or "=" and the value; birth and version of what was last seen, or ""; the number
--       of items; the items.
-- Answer: "ok" and for each operation version and birth, or why not: "conflict", "back", "damaged" or "format", with the number
--       of the operation, then what is there.
local operations, ttl = tonumber(ARGV[1]), tonumber(ARGV[2])
local stride = ttl > 0 and 3 or 2
local plan, at = {}, 4

for n = 1, operations do
  local kind, expected, number, seen, first = ARGV[at], ARGV[at + 3], ARGV[at + 4], ARGV[at + 9], at + 11
  local old = redis.call('LINDEX', KEYS[stride * (n - 1) + 1], 0)
  local actual, born, count = '0', '', -1
  if old then
    old = parse(old)
    if not old then return {'damaged', n} end
    if not old.version then return {'format', n, old.format} end
    actual, born, count = old.version, birth(old), old.count
    if seen ~= '' and kind ~= 'D' then
      local seen_born, version = string.match(seen, '^(.*) (%d+)$')
      if seen_born == born and older(actual, version) then return {'back', n, actual, born} end
    end
  end
  if (expected ~= '' and expected ~= actual) or (kind == 'R' and tonumber(number) > count) then
    return {'conflict', n, actual, born}
  end
  for key = 2, stride do redis.call('ZCARD', KEYS[stride * (n - 1) + key]) end -- one of a wrong type is found before any write
  plan[n] = {at = at, old = old, first = first, last = first + ARGV[first - 1] - 1}
  at = plan[n].last + 1
end

local function keep(given, old)
  if given == '' then return old end
  return string.sub(given, 2)
end

-- The first command is one that the server refuses when it is out of memory or may not write.
local function store(n, at, head, first, last)
  local kind, id, instant = ARGV[at], ARGV[at + 2], ARGV[at + 5]
  local journal, index, due = unpack(KEYS, stride * (n - 1) + 1, stride * n)
  local new = not head
  head = head or {
    version = ARGV[at + 4], count = 0, rewritten = '0', first = ARGV[at + 4], created = instant, updated = instant, data = '',
  }
  local updated, before = head.updated, not new and filters(head)
  local due_before = ttl > 0 and signature(id, head)
  if not new then
    head.version = successor(head.version)
    if instant > updated then head.updated = instant end -- 18 digits each
  end
  if kind == 'R' then head.rewritten, head.count = head.version, tonumber(ARGV[at + 4]) end
  head.count = head.count + last - first + 1
  head.group, head.status = keep(ARGV[at + 6], head.group), keep(ARGV[at + 7], head.status)
  head.data = keep(ARGV[at + 8], head.data)

  local moved = ARGV[at + 6] ~= '' or ARGV[at + 7] ~= ''
  local after = (moved or new) and filters(head) or before
  if new then
    add(index, members(after, ALL, id, head.created, head.updated))
    redis.call('RPUSH', journal, format(head))
  else
    redis.call('LSET', journal, 0, format(head))
    if kind == 'R' then redis.call('LTRIM', journal, 0, ARGV[at + 4]) end
    if moved or updated ~= head.updated then
      local orders = moved and ALL or RECENT
      local gone = members(before, orders, id, head.created, updated)
      if remove(index, gone) < #gone then orders = ALL end -- the index was lost: put back what belongs there
      add(index, members(after, orders, id, head.created, head.updated))
    end
  end
  for from = first, last, 4000 do -- `unpack` has a limit
    redis.call('RPUSH', journal, unpack(ARGV, from, math.min(from + 3999, last)))
  end
  if ttl > 0 then
    redis.call('ZREM', due, due_before)
    redis.call('ZADD', due, now() + ttl, signature(id, head))
    sweep(index, due, ARGV[at + 1])
  elseif new then
    redis.call('PERSIST', index)
  end
  return head.version, birth(head)
end

-- An index, and what is due of it, lasts as long as the last journal in it; with one that has no end, for ever.
local ends = {}
if ttl > 0 then
  for n = 3 * operations + 4, #KEYS, 2 do ends[n] = redis.call('PTTL', KEYS[n]) end
end

local answer = {'ok'}
for n = 1, operations do
  local op = plan[n]
  local version, born = '0', ''
  if ARGV[op.at] ~= 'D' then
    version, born = store(n, op.at, op.old, op.first, op.last)
  elseif op.old then
    local id, old = ARGV[op.at + 2], op.old
    version = old.version
    local journal, index, due = unpack(KEYS, stride * (n - 1) + 1, stride * n)
    remove(index, members(filters(old), ALL, id, old.created, old.updated))
    if ttl > 0 then redis.call('ZREM', due, signature(id, old)) end
    redis.call('DEL', journal)
  end
  answer[2 * n], answer[2 * n + 1] = version, born
end

if ttl > 0 then
  refresh(ttl, operations)
  for n, left in pairs(ends) do
    for key = n, n + 1 do
      if left == -1 then
        redis.call('PERSIST', KEYS[key])
      else
        redis.call('PEXPIRE', KEYS[key], math.max(left, ttl))
      end
    end
  end
end
return answer
