-- The first element of a journal is its head: a line of fields, then group, status and data. The rest are the items.

local FORMAT = '1'
local FIELDS = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([-%d]%d*) ([-%d]%d*)\n()'

-- Return group or status, and where what is behind it begins; nothing if the text is cut there.
local function label(text, from, length)
  if length == '-' then return nil, from end
  local found = string.sub(text, from, from + length - 1)
  if #found == tonumber(length) then return found, from + #found end
end

-- A head with `format` alone is one of a newer release, which may have other fields.
local function parse(text)
  local format, version, count, rewritten, first, created, updated, group, status, rest = string.match(text, FIELDS)
  if format ~= FORMAT then
    format = string.match(text, '^(%d+) ')
    return format and format ~= FORMAT and {format = format} or nil
  end
  group, rest = label(text, rest, group)
  if rest then status, rest = label(text, rest, status) end
  if not rest then return end
  return {
    format = format, version = version, count = tonumber(count), rewritten = rewritten, first = first, created = created,
    updated = updated, group = group, status = status, data = string.sub(text, rest),
  }
end

local function format(head)
  local group, status = head.group, head.status
  return FORMAT .. ' ' .. head.version .. ' ' .. head.count .. ' ' .. head.rewritten .. ' ' .. head.first .. ' ' .. head.created .. ' '
    .. head.updated .. ' ' .. (group and #group or '-') .. ' ' .. (status and #status or '-') .. '\n' .. (group or '') .. (status or '')
    .. head.data
end

-- A version may have 19 digits, more than a double holds, so it is text.
local function successor(version)
  if #version < 15 then return string.format('%.0f', version + 1) end
  local low = string.format('%09.0f', string.sub(version, -9) + 1)
  local high = string.sub(version, 1, -10)
  if #low == 9 then return high .. low end
  return successor(high) .. string.sub(low, 2)
end

-- What tells a journal from another one of the same id that was deleted: its first version, and when it was created.
local function birth(head)
  return head.first .. '@' .. head.created
end

local function older(one, other)
  if #one ~= #other then return #one < #other end
  return one < other -- both digits, as many
end
