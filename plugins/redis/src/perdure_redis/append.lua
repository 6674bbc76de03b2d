-- The write that there is most of: one append to a journal that is there and has no end, and keeps its group and status. It stands in
-- front of the functions and uses none: by `write.lua` the same takes half as long again. Whatever is something else, also what is to
-- be refused, is left to that; nothing has been written then. KEYS, ARGV and the answer are as there, the formats as in `head.lua` and
-- `index.lua`.
local function append(journal, index, id, expected, instant, group, status, data, seen)
  local version, count, origin, first, created, updated, lengths, group_length, status_length, rest = string.match(
    redis.call('LINDEX', journal, 0) or '', '^1 (%d+) (%d+) (%d+ (%d+) (%d+)) (%d+)( ([-%d]%d*) ([-%d]%d*)\n)(.*)$')
  if not version or #version > 13 or (expected ~= '' and expected ~= version) then return end -- a sum of 14 digits is exact
  local birth = first .. '@' .. created
  if seen ~= '' and seen ~= birth .. ' ' .. version then return end
  local old_group = group_length ~= '-' and string.sub(rest, 1, group_length)
  local labels = old_group and #old_group or 0
  local old_status = status_length ~= '-' and string.sub(rest, labels + 1, labels + status_length)
  if old_group and labels ~= tonumber(group_length) or old_status and #old_status ~= tonumber(status_length) then return end -- cut
  if group ~= '' and not (old_group and group == '=' .. old_group) then return end
  if status ~= '' and not (old_status and status == '=' .. old_status) then return end
  if redis.call('PTTL', journal) >= 0 then return end

  version = version + 1 .. ''
  if data ~= '' then rest = (old_group or '') .. (old_status or '') .. string.sub(data, 2) end
  local moves, latest = instant > updated, updated
  local filters, into, out = {':'}, {}, {}
  if moves then
    latest = instant
    if old_group then filters[2] = 'g' .. group_length .. ':' .. old_group end
    if old_status then filters[#filters + 1] = 's' .. status_length .. ':' .. old_status end
    for n = 1, #filters do
      into[2 * n - 1], into[2 * n] = 0, 'r' .. filters[n] .. instant .. id
      out[n] = 'r' .. filters[n] .. updated .. id
    end
    redis.call('ZADD', index, unpack(into))
  end
  redis.call('LSET', journal, 0, '1 ' .. version .. ' ' .. count + ARGV[14] .. ' ' .. origin .. ' ' .. latest .. lengths .. rest)
  if moves and redis.pcall('ZREM', index, unpack(out)) ~= #out then -- the index was lost: put back what belongs there
    for _, filter in ipairs(filters) do
      redis.call('ZADD', index, 0, 'i' .. filter .. id, 0, 'c' .. filter .. created .. id, 0, 'r' .. filter .. latest .. id)
    end
  end
  if ARGV[15] then redis.call('RPUSH', journal, unpack(ARGV, 15)) end
  return {'ok', version, birth}
end

if ARGV[1] == '1' and ARGV[4] == 'A' and not KEYS[3] and #ARGV <= 4000 then
  local answer = append(KEYS[1], KEYS[2], ARGV[6], ARGV[7], ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13])
  if answer then return answer end
end
