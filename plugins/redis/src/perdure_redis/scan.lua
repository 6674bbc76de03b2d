-- List heads in the order of an index. It writes nothing: a member whose journal has expired is passed over.
-- KEYS: the index. ARGV: what the names of journals begin with; part; order (i, c, r); group and status, each "" or "=" and the
-- value; instant before which the last write must be, or ""; the place to continue behind, or ""; how many heads at most; how
-- many members to look at, at most.
-- Answer: the place to continue behind, "" at the end; then for each head its place and its text.
local index, prefix, part, order = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local group, status, before, behind = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local limit, budget = tonumber(ARGV[8]), tonumber(ARGV[9])

local function range(kind, value)
  local filter = order .. kind .. #value .. ':' .. value
  return filter, redis.call('ZLEXCOUNT', index, '[' .. filter, '(' .. filter .. '\255')
end

-- Of group and status, go by the one that fewer have, and look at the other in the head.
local filter, many = order .. ':', nil
if group ~= '' then filter, many = range('g', string.sub(group, 2)) end
if status ~= '' then
  local other, less = range('s', string.sub(status, 2))
  if not many or less < many then filter = other end
end

local low, high = '[' .. filter, '(' .. filter .. '\255'
if before ~= '' and order ~= 'i' then high = '(' .. filter .. before end -- nothing is created after its last write
if order ~= 'r' then
  if behind ~= '' then low = '(' .. filter .. behind end
elseif behind ~= '' and (before == '' or string.sub(behind, 1, 18) < before) then
  high = '(' .. filter .. behind
end

local function wanted(id, head, there)
  return place(order, id, head.created, head.updated) == there -- else the member is of a journal that has expired since
    and (group == '' or head.group and '=' .. head.group == group)
    and (status == '' or head.status and '=' .. head.status == status)
    and (before == '' or head.updated < before)
end

local answer, given, seen = {''}, 0, 0
local function look(member)
  local there = string.sub(member, #filter + 1)
  local id = order == 'i' and there or string.sub(there, 19)
  local text = redis.pcall('LINDEX', journal_of(prefix, part, id), 0)
  if type(text) == 'table' then
    if not string.find(text.err, 'WRONGTYPE', 1, true) then error(text.err) end
    text = '' -- something of another program: it cannot be read, as one that is no head
  end
  local head = text and parse(text)
  if text and (not head or not head.version or wanted(id, head, there)) then
    answer[#answer + 1] = there
    answer[#answer + 1] = text -- also if it cannot be read: that is not passed over
    given = given + 1
  end
  seen, behind = seen + 1, there
end

-- Where few of them were last written before, it goes by that; their ranks in the index are the order of their ids.
local recent = 'r' .. string.sub(filter, 2)
local oldest, newest = '[' .. recent, '(' .. recent .. before
local few = before ~= '' and order == 'i' and redis.call('ZLEXCOUNT', index, oldest, newest)
if few and few <= budget and few <= redis.call('ZLEXCOUNT', index, '[' .. filter, high) / 4 then
  local first = behind == '' and 0 or redis.call('ZLEXCOUNT', index, '-', '[' .. filter .. behind)
  local ranks, at = {}, {}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', index, oldest, newest)) do
    member = filter .. string.sub(member, #recent + 19)
    local rank = redis.call('ZRANK', index, member)
    if rank and rank >= first and not at[rank] then ranks[#ranks + 1], at[rank] = rank, member end
  end
  table.sort(ranks)
  for n, rank in ipairs(ranks) do
    look(at[rank])
    if given >= limit and n < #ranks then
      answer[1] = behind
      return answer
    end
  end
  return answer
end

while true do
  local chunk = math.min(limit - given, budget - seen)
  local found
  if order == 'r' then
    found = redis.call('ZREVRANGEBYLEX', index, high, low, 'LIMIT', 0, chunk)
  else
    found = redis.call('ZRANGEBYLEX', index, low, high, 'LIMIT', 0, chunk)
  end
  for _, member in ipairs(found) do look(member) end
  if #found < chunk then return answer end
  if order == 'r' then high = '(' .. filter .. behind else low = '(' .. filter .. behind end
  if given >= limit or seen >= budget then
    answer[1] = behind
    return answer
  end
end
