"""Lua scripts that Redis runs atomically."""

SWAP = """
local now = redis.call('GET', KEYS[1])
if ARGV[1] == '1' then
  if now ~= ARGV[2] then return 0 end
elseif now then return 0 end
if ARGV[4] == '' then redis.call('SET', KEYS[1], ARGV[3])
else redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4]) end
return 1
"""

# A lease is kept for a day after it has expired: its absence means that all data were lost. Its
# token follows the clock of Redis, so that it increases even then; `%.0f` writes it without an
# exponent.
ACQUIRE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[4] ~= '' and redis.call('HGET', KEYS[2], 'token') ~= ARGV[4] then return false end
local last = redis.call('HMGET', KEYS[1], 'holder', 'token', 'until')
local holder, token, till = last[1] or '', tonumber(last[2] or 0), tonumber(last[3] or 0)
if holder ~= '' and holder ~= ARGV[1] and till > now then return false end
token = math.max(token + 1, now)
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'token', string.format('%.0f', token),
  'until', string.format('%.0f', now + ARGV[2]), 'note', ARGV[3])
redis.call('PEXPIRE', KEYS[1], 86400000 + ARGV[2])
return string.format('%.0f', token)
"""

# An expired lease is renewed, too, if it was not taken: its token is still the greatest.
RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = {}
for i, key in ipairs(KEYS) do
  local last = redis.call('HMGET', key, 'holder', 'token')
  if last[1] and last[1] ~= '' and last[2] == ARGV[i + 1] then
    redis.call('HSET', key, 'until', string.format('%.0f', now + ARGV[1]))
    redis.call('PEXPIRE', key, 86400000)
    kept[#kept + 1] = i
  end
end
return kept
"""

# The token stays: the next holder needs a greater one.
RELEASE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = redis.call('HMGET', KEYS[1], 'holder', 'token', 'until')
if not last[1] or last[1] == '' or last[2] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'holder', '')
if tonumber(last[3]) > now then return 1 end
return 0
"""

LOOK = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}
for i, key in ipairs(KEYS) do
  local last = redis.call('HMGET', key, 'holder', 'token', 'until', 'note')
  if last[2] then
    found[i] = {last[1], last[2], string.format('%.0f', last[3] - now), last[4]}
  else
    found[i] = 0
  end
end
return found
"""

# Announced in the same step: a reader that is notified can read the entry.
APPEND = """
local id = redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[1], '*', 'd', ARGV[2])
if ARGV[3] ~= '' then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
redis.call('PUBLISH', ARGV[4], KEYS[1])
return id
"""

# Only the first amount sets the expiry: a counter in constant use must expire as well.
COUNT = """
local value = redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return value
"""

# Time is that of Redis, so that replicas with different clocks share one window.
TAKE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local limit, window, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local parts = tonumber(ARGV[4])
local size = window / parts
local part = math.floor(now / size)
local all, used, oldest = redis.call('HGETALL', KEYS[1]), 0, part
for i = 1, #all, 2 do
  local one = tonumber(all[i])
  if one <= part - parts then redis.call('HDEL', KEYS[1], all[i])
  else
    used = used + all[i + 1]
    if one < oldest then oldest = one end
  end
end
if used + amount > limit then
  return {0, limit - used, string.format('%.6f', (oldest + parts) * size - now)}
end
redis.call('HINCRBY', KEYS[1], string.format('%.0f', part), amount)
redis.call('PEXPIRE', KEYS[1], math.ceil(window * 1000))
return {1, limit - used - amount, '0'}
"""
