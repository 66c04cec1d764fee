-- wrk script: one create-if-absent transaction on a fresh key per request, through etcd's JSON gateway.
--
-- The gateway needs base64. A key is a prefix and twelve digits. The base64 of every three digits is made
-- beforehand, so that a request is a few concatenations and wrk is not the bottleneck.
-- Argument: a prefix in base64, of a whole number of three-byte groups.

local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("thread_number", threads)
end

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

local function letter(number)
  return ALPHABET:sub(number + 1, number + 1)
end

local function base64_of_three(text)
  local a, b, c = text:byte(1, 3)
  local bits = a * 65536 + b * 256 + c
  return letter(math.floor(bits / 262144)) .. letter(math.floor(bits / 4096) % 64) ..
    letter(math.floor(bits / 64) % 64) .. letter(bits % 64)
end

local three_digits = {}
for number = 0, 999 do
  three_digits[number] = base64_of_three(string.format("%03d", number))
end

local head, prefix
local number = 0
local floor = math.floor
-- "worker-1 2026-07-20T14:00:10.123Z 5f0c6c1e-6a3f-4c1e-9b7e-000000000001": a realistic value of a lock
local VALUE = "d29ya2VyLTEgMjAyNi0wNy0yMFQxNDowMDoxMC4xMjNaIDVmMGM2YzFlLTZhM2YtNGMxZS05YjdlLTAwMDAwMDAwMDAwMQ=="

function init(args)
  head = "POST /v3/kv/txn HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port ..
    "\r\nContent-Type: application/json\r\nContent-Length: "
  prefix = args[1] .. three_digits[thread_number]
end

function request()
  number = number + 1
  local key = prefix .. three_digits[floor(number / 1000000)] .. three_digits[floor(number / 1000) % 1000] ..
    three_digits[number % 1000]
  local body = '{"compare":[{"key":"' .. key .. '","target":"CREATE","result":"EQUAL","create_revision":"0"}],' ..
    '"success":[{"request_put":{"key":"' .. key .. '","value":"' .. VALUE .. '"}}]}'
  return head .. #body .. "\r\n\r\n" .. body
end
