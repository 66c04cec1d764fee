-- wrk script: acquire locks, and release each one LAG acquires later.
--
-- wrk chooses the connection of each request, so a release sent right after its acquire could overtake it on another
-- connection. LAG acquires later the response has arrived, because there are far fewer connections than LAG.
-- Keys begin with digits in random order by default, because real lock names do not arrive in index order.
-- Arguments: a prefix that makes the keys of this run fresh; N: every Nth request acquires a lock that is already
-- held, and is refused (0: none); LAG, or "never" for no releases; "random" or "ascending" order of the keys; how many
-- locks are used again and again, more than LAG (0: each is fresh).
-- Environment: BENCH_SERVICE_KEY.

local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("thread_number", threads)
end

local key_tail, common, acquire_tail
local acquired, released, sent, refused_every, lag = 0, 0, 0, 0, 0
local acquire_next, key_factor, lock_count = true, 1, 0
local format = string.format

function init(args)
  common = " HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port ..
    "\r\nAuthorization: Bearer " .. os.getenv("BENCH_SERVICE_KEY") ..
    "\r\nX-Volcano-Lock-Holder: bench/1"
  key_tail = "-" .. args[1] .. "-" .. thread_number .. "/lease"
  refused_every, lag = tonumber(args[2]), tonumber(args[3]) or math.huge
  key_factor = args[4] == "ascending" and 1 or 2654435761  -- an odd factor maps no two numbers to one
  lock_count = tonumber(args[5])
  local body = '{"ttl_seconds":60}'
  acquire_tail = "\r\nContent-Type: application/json\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body
end

local function key_digits(number)
  if lock_count > 0 then
    number = number % lock_count
  end
  return format("%08x", (number * key_factor) % 4294967296)
end

local function ids(number, verb)
  return format(
    "\r\nX-Volcano-Lock-Token: 10c4ed00-0000-4000-8%03x-%012x\r\nX-Volcano-Request-Id: 5e4d0000-0000-4000-8%03x-%012x",
    thread_number, number, thread_number, 2 * number + verb)
end

function request()
  sent = sent + 1
  if refused_every > 0 and sent % refused_every == 1 then
    return "POST /locks/busy" .. key_tail .. common .. ids(4294967296 + sent, 0) .. acquire_tail
  end
  if acquire_next then
    acquired = acquired + 1
    acquire_next = acquired - released <= lag
    return "POST /locks/" .. key_digits(acquired) .. key_tail .. common .. ids(acquired, 0) .. acquire_tail
  end
  released = released + 1
  acquire_next = true
  return "DELETE /locks/" .. key_digits(released) .. key_tail .. common .. ids(released, 1) .. "\r\n\r\n"
end
