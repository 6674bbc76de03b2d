-- An index is a sorted set whose scores are all 0, so that its order is that of the bytes of its members. Each journal has a
-- member for each order (i: by id, c: by creation, r: by the last write), and again for its group and its status if it has them.

local function filters(head)
  local all = {':'}
  if head.group then all[2] = 'g' .. #head.group .. ':' .. head.group end
  if head.status then all[#all + 1] = 's' .. #head.status .. ':' .. head.status end
  return all
end

local function place(order, id, created, updated)
  if order == 'i' then return id end
  return (order == 'c' and created or updated) .. id
end

local function members(filters, orders, id, created, updated)
  local all = {}
  for _, order in ipairs(orders) do
    local there = place(order, id, created, updated)
    for _, filter in ipairs(filters) do all[#all + 1] = order .. filter .. there end
  end
  return all
end

local ALL, RECENT = {'i', 'c', 'r'}, {'r'}

-- While its slot moves, a cluster refuses to make a key anew, also one that a script has just emptied. So whatever is put into a
-- sorted set is put there before anything is taken out, and taking out does not fail: what is left over is passed over by listings.
local function take(set, names)
  local taken = #names > 0 and redis.pcall('ZREM', set, unpack(names))
  return type(taken) == 'number' and taken or 0
end

local function without(names, others)
  local kept, left = {}, {}
  for _, name in ipairs(others) do kept[name] = true end
  for _, name in ipairs(names) do
    if not kept[name] then left[#left + 1] = name end
  end
  return left
end

local function add(index, names)
  local scored = {}
  for n, name in ipairs(names) do
    scored[2 * n - 1], scored[2 * n] = 0, name
  end
  redis.call('ZADD', index, unpack(scored))
end

-- The hash tag is a digest of the conversation, an octal number below 64. Not every server, and no fake, has the same digests.
local function journal_of(prefix, part, id)
  local digest = 0
  for _, byte in ipairs({string.byte(string.match(id, '^[^.]*'), 1, -1)}) do digest = (31 * digest + byte) % 65521 end
  return string.format('%s{%02opd}:%s:%s', prefix, digest % 64, part, id)
end
