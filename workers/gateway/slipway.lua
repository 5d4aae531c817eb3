-- What HAProxy itself can't read: a request's fields, once and strictly, and the usage in answers while they pass.
--
-- Loaded once per thread. Bodies are scanned with plain finds, which run at memory speed; nothing here waits for anything.

local find, byte, sub, match, gsub = string.find, string.byte, string.sub, string.match, string.gsub

-- Little is kept here, so that little is there to be walked through: rarely is often enough.
collectgarbage("setpause", 400)

local QUOTE, BACKSLASH, OPEN, CLOSE, COLON, COMMA = 34, 92, 123, 125, 58, 44
local NUMBERS = { max_tokens = true, max_completion_tokens = true, max_output_tokens = true, n = true }
-- Endpoints whose answers cost tokens; of the others only the prompt counts.
local GENERATES = {
  ["/v1/chat/completions"] = true, ["/v1/completions"] = true, ["/v1/responses"] = true, ["/v1/messages"] = true,
}
local HAS_USAGE_CHUNK = { ["/v1/chat/completions"] = true, ["/v1/completions"] = true }
-- How an answer is to be read (`txn.kind`): a chunk with usage alone is taken out, or it has a form of its own. Copies of
-- requests are told theirs by the configuration.
local STRIP, MESSAGES, RESPONSES = 1, 2, 3
local OWN_FORM = { ["/v1/messages"] = MESSAGES, ["/v1/responses"] = RESPONSES }
-- Why answers end, in the words of chat completions.
local REASONS = {
  end_turn = "stop", stop_sequence = "stop", max_tokens = "length", max_output_tokens = "length", tool_use = "tool_calls",
}

-- Index of the quote that ends the string which begins at `at`; nil if it never ends.
local function string_end(text, at)
  local from = at + 1
  while true do
    local quote = find(text, '"', from, true)
    if not quote then return nil end
    local slashes = quote - 1
    while slashes >= from and byte(text, slashes) == BACKSLASH do slashes = slashes - 1 end
    if (quote - 1 - slashes) % 2 == 0 then return quote end
    from = quote + 1
  end
end

-- Index of the bracket that ends the object or array which begins at `at`.
local function container_end(text, at)
  local depth, from = 0, at
  while true do
    local place = find(text, '["{}%[%]]', from)
    if not place then return nil end
    local sign = byte(text, place)
    if sign == QUOTE then
      place = string_end(text, place)
      if not place then return nil end
    elseif sign == OPEN or sign == 91 then
      depth = depth + 1
    else
      depth = depth - 1
      if depth == 0 then return place end
    end
    from = place + 1
  end
end

-- What is wrong where a member should begin.
local function why_no_name(text, at)
  if byte(text, at) ~= QUOTE then return "The body is not valid JSON." end
  local quote = string_end(text, at)
  if not quote then return "The body is not valid JSON: a string never ends." end
  if find(sub(text, at + 1, quote - 1), "\\", 1, true) then
    return "A field's name is written with escapes. Write it plainly."
  end
  return quote - at < 200 and "The body is not valid JSON." or "A field's name is longer than any that is known."
end

-- The members of the object in `text`, as raw JSON by name; or nil and what is wrong.
-- A name that stands twice, or that is written with escapes, is refused: two readers could understand it differently.
local function members(text)
  local found, at = {}, match(text, "^[ \t\r\n]*{[ \t\r\n]*()")
  if not at then return nil, "The body is not a JSON object." end
  if byte(text, at) == CLOSE then return found end
  while true do
    -- Only plain finds may go over what can be megabytes long.
    local quote, name, value = find(text, '"', at + 1, true), nil, nil
    if quote and quote - at < 200 then name, value = match(text, '^"([^"\\]*)"[ \t\r\n]*:[ \t\r\n]*()', at) end
    if not name then return nil, why_no_name(text, at) end
    if found[name] then return nil, "The field '" .. gsub(sub(name, 1, 60), "[^%w_%-. ]", "?") .. "' stands twice." end
    local sign, stop = byte(text, value), nil
    if sign == QUOTE then stop = string_end(text, value)
    elseif sign == OPEN or sign == 91 then stop = container_end(text, value)
    else stop = match(text, "^[%w+.%-]+()", value); stop = stop and stop - 1 end
    if not stop then return nil, "The body is not valid JSON: it ends too early." end
    found[name] = sub(text, value, stop)
    local sep
    sep, at = match(text, "^[ \t\r\n]*([,}])[ \t\r\n]*()", stop + 1)
    if sep == "}" then
      if at <= #text then return nil, "Something follows the JSON object." end
      return found
    elseif sep ~= "," then
      return nil, "The body is not valid JSON."
    end
  end
end

-- A whole number that is not negative; nil if it is absent or null; false if it is something else.
local function whole(raw)
  if raw == nil or raw == "null" then return nil end
  local digits = match(raw, "^%d+$")
  if not digits or #digits > 9 then return false end
  return tonumber(digits)
end

-- The first of the messages: the system prompt, where there is one. Requests that share it share an engine's prefix cache.
local function first_message(raw)
  local at = raw and match(raw, "^%[[ \t\r\n]*(){")
  local stop = at and container_end(raw, at)
  return stop and sub(raw, at, stop)
end

local function refuse(txn, why)
  txn:set_var("txn.bad", why)
end

-- Whether a closer look for control characters is worth it: plain finds, and hardly any body holds one of these.
local function may_hold_controls(text)
  return find(text, "\\u00", 1, true) or find(text, "\127", 1, true) or find(text, "\194", 1, true)
end

core.register_action("slipway_read", { "http-req" }, function(txn)
  local body = txn.f:req_body() or ""
  local path = txn.f:path()
  local fields, why = members(body)
  if not fields then return refuse(txn, why) end
  local model = fields.model
  if not model then return refuse(txn, "The field 'model' is missing.") end
  if byte(model) ~= QUOTE then return refuse(txn, "The field 'model' must be a string.") end
  model = sub(model, 2, -2)
  if find(model, "\\/", 1, true) then model = gsub(model, "\\/", "/") end
  if model == "" or #model > 200 or find(model, '[%c\\ ]') then
    return refuse(txn, "The field 'model' holds characters that no model's name has, or escapes. Write it plainly.")
  end
  local numbers = {}
  for name in pairs(NUMBERS) do
    local value = whole(fields[name])
    if value == false then
      return refuse(txn, "The field '" .. name .. "' must be a whole number that is not negative.")
    end
    numbers[name] = value
  end
  local output = numbers.max_completion_tokens or numbers.max_output_tokens or numbers.max_tokens
  if numbers.max_completion_tokens and numbers.max_tokens then
    output = math.max(numbers.max_completion_tokens, numbers.max_tokens)
  end
  txn:set_var("txn.model", model)
  txn:set_var("txn.prompt", (#body + 2) // 3)
  txn:set_var("txn.choices", math.max(1, math.min(numbers.n or 1, 1000)))
  if not GENERATES[path] then
    txn:set_var("txn.asked", 0)
  elseif output then
    txn:set_var("txn.asked", output)
  end
  if OWN_FORM[path] then txn:set_var("txn.kind", OWN_FORM[path]) end
  if fields.stream == "true" then
    txn:set_var("txn.stream", 1)
    local options = fields.stream_options
    local told = options and byte(options) == OPEN and members(options) or {}
    if told.include_usage ~= "true" and HAS_USAGE_CHUNK[path] then txn:set_var("txn.kind", STRIP) end
  end
  if may_hold_controls(body) then txn:set_var("txn.suspect", 1) end
end)

-- What requests have in common that find the same prefix in an engine's cache: for routes that send them to the same one.
core.register_action("slipway_prefix", { "http-req" }, function(txn)
  local fields = members(txn.f:req_body() or "") or {}
  local prefix = first_message(fields.messages) or fields.prompt or fields.input
  if prefix then txn:set_var("txn.prefix", sub(prefix, 1, 2048)) end
end)

-- Control characters -----------------------------------------------------------------------------------------------------

-- What stands for a control character in JSON, with as many blanks instead: `\\u0000` (not after another backslash), DEL
-- and the C1 set as UTF-8. Tabs and line ends stay.
local function without_controls(text)
  local function escaped(slashes, code)
    local number = tonumber(code, 16)
    if #slashes % 2 == 0 or number == 9 or number == 10 or number == 13 then return nil end
    if number < 32 or (number > 126 and number < 160) then return sub(slashes, 2) .. "      " end
  end
  if find(text, "\\u00", 1, true) then text = gsub(text, "(\\+)u(00%x%x)", escaped) end
  if find(text, "\127", 1, true) then text = gsub(text, "\127", " ") end
  if find(text, "\194[\128-\159]") then text = gsub(text, "\194[\128-\159]", "  ") end
  return text
end

core.register_action("slipway_controls", { "http-req" }, function(txn)
  local body = txn.f:req_body() or ""
  if without_controls(body) ~= body then txn:set_var("txn.has_controls", 1) end
end)

-- The engine's own count of a prompt -----------------------------------------------------------------------------------

local COUNT_MS = 5000
local COUNTED = { ["/v1/chat/completions"] = "messages", ["/v1/completions"] = "prompt" }

-- /tokenize takes a request as it is. Where it can't count (several prompts, no answer), the estimate stays in force.
core.register_action("slipway_count", { "http-req" }, function(txn)
  local field = COUNTED[txn.f:path()]
  local host, key = match(txn:get_var("txn.tokenizer") or "", "^(%S+) (%S+)$")
  if not field or not host then return end
  local asked = core.httpclient():post({
    url = "http://" .. host .. "/tokenize", body = txn.f:req_body(), timeout = COUNT_MS,
    headers = { ["content-type"] = { "application/json" }, ["authorization"] = { "Bearer " .. key } },
  })
  local count = asked and asked.status == 200 and asked.body and match(asked.body, '"count":%s*(%d+)')
  if count then
    txn:set_var("txn.prompt", tonumber(count))
    txn:set_var("txn.counted", 1)
  end
end)

-- Shadows: copies of requests, whose answers are thrown away --------------------------------------------------------------

-- Bounds of one thread. A request over them is not copied; an answer over them is cut off.
local COPIES_AT_ONCE = 8
local COPY_BYTES = 256 * 1024
local COPY_ANSWER_BYTES = 8 * 1024 * 1024
local COPY_SECONDS = 300
local CUT = "slipway: cut off" -- what the filter puts in the place of an answer beyond its bounds
local copies = 0

-- Sends a copy to this thread's own frontend, which logs it, and reads on until the answer ends or is cut off.
local function send_copy(head, body)
  pcall(function()
    local link = core.tcp()
    link:settimeout(COPY_SECONDS)
    if link:connect("unix@shadow" .. core.thread .. ".sock") and link:send(head .. body) then
      local line
      repeat line = link:receive("*l") until not line or line == CUT
    end
    link:close()
  end)
  copies = copies - 1
end

core.register_action("slipway_shadow", { "http-req" }, function(txn)
  local to, percent = match(txn:get_var("txn.shadow") or "", "^([^;]+);(%d+)$")
  txn:unset_var("txn.shadow")
  if not to or math.random(100) > tonumber(percent) then return end
  if copies >= COPIES_AT_ONCE then return txn:set_var("txn.shadow", "busy") end
  if txn.f:req_body_len() > COPY_BYTES then return txn:set_var("txn.shadow", "large") end
  local body = txn.f:req_body() or ""
  if txn:get_var("txn.controls") == "blank" then body = without_controls(body) end
  local order = { to, txn:get_var("txn.key"), txn:get_var("txn.route"), txn:get_var("txn.model") }
  local head = table.concat({
    "POST " .. txn.f:path() .. " HTTP/1.1", "Host: shadow", "Connection: close", "Content-Type: application/json",
    "Content-Length: " .. #body, "X-Request-Id: " .. txn:get_var("txn.id"),
    "X-Slipway-Shadow: " .. table.concat(order, ";"), "\r\n",
  }, "\r\n")
  copies = copies + 1
  txn:set_var("txn.shadow", "original")
  core.register_task(send_copy, head, body)
end)

-- Usage -----------------------------------------------------------------------------------------------------------------

local TAIL_BYTES = 600 -- longer than a usage object: one that is split across buffers is found in the tail and the rest

local Usage = { id = "slipway usage", flags = filter.FLT_CFG_FL_HTX }
Usage.__index = Usage

function Usage:new()
  return setmetatable({}, Usage)
end

local function milliseconds()
  local now = core.now()
  return now.sec * 1000 + now.usec // 1000
end

function Usage:http_headers(txn, message)
  -- Asking the channel itself costs more than remembering whether the request's came by.
  if not self.began then
    self.began = milliseconds()
    local seconds = tonumber(txn:get_var("txn.deadline") or "0") or 0
    self.deadline = seconds > 0 and self.began + 1000 * seconds
    if txn:get_var("txn.has_controls") and txn:get_var("txn.controls") == "blank" then
      self.blanks = true
      filter.register_data_filter(self, message.channel)
    end
    return filter.CONTINUE
  end
  if txn:get_var("txn.to") then
    local kind = txn:get_var("txn.kind")
    if kind == STRIP then self.strip = true elseif kind then self.own_form = kind end
    self.left = txn:get_var("txn.shadow") == "copy" and COPY_ANSWER_BYTES
    filter.register_data_filter(self, message.channel)
  end
  return filter.CONTINUE
end

-- Where `name` (a field with its colon) stands last in `text`: the index of its value; nil if it does not.
local function last_value(text, name)
  local found, from = nil, 1
  while true do
    local at = find(text, name, from, true)
    if not at then return found and match(text, "^[ ]*()", found) end
    found, from = at + #name, at + #name
  end
end

-- Whether the usage in `text` is that of the whole answer. A stream of responses first says what was asked, as objects that a
-- client can fill with anything; no client can forge the line that begins its last event, since it holds real line ends.
function Usage:is_final(text)
  if not self.final then
    self.final = find(text, "\nevent: response.completed\n", 1, true)
      or find(text, "\nevent: response.incomplete\n", 1, true)
  end
  return self.final
end

-- Why an answer of messages or responses ends. A word that is not known stays as it is.
function Usage:read_end(txn, text)
  local reason
  if self.own_form == MESSAGES then
    local at = last_value(text, '"stop_reason":')
    reason = at and match(text, '^"([%w_]+)"', at)
  else
    -- Why it is incomplete stands before its output, which may come in many pieces, and its status after that.
    local at = last_value(text, '"incomplete_details":')
    self.incomplete = at and match(text, '^{%s*"reason":%s*"([%w_]+)"', at) or self.incomplete
    at = last_value(text, '"status":')
    local status = at and match(text, '^"([%w_]+)"', at)
    if status == "completed" then reason = "stop" elseif status == "incomplete" then reason = self.incomplete or "length" end
  end
  if reason then txn:set_var("txn.finish_reason", REASONS[reason] or reason) end
end

-- Read what `text` tells. Quotes inside of answers are escaped, so that an answer can't forge these fields.
function Usage:read(txn, text)
  if self.own_form == RESPONSES and not self:is_final(text) then return end
  local at = last_value(text, '"usage":')
  local object = at and match(text, "^%b{}", at)
  if object then
    local prompt = match(object, '"prompt_tokens":%s*(%d+)') or match(object, '"input_tokens":%s*(%d+)')
    local output = match(object, '"completion_tokens":%s*(%d+)') or match(object, '"output_tokens":%s*(%d+)')
    if self.own_form == MESSAGES then
      -- A stream of messages begins with zeros: what is not known yet.
      prompt, output = prompt ~= "0" and prompt, output ~= "0" and output
    end
    if prompt and prompt ~= self.prompt then self.prompt = prompt; txn:set_var("txn.prompt_tokens", tonumber(prompt)) end
    if output and output ~= self.output then self.output = output; txn:set_var("txn.output_tokens", tonumber(output)) end
  end
  if self.own_form then return self:read_end(txn, text) end
  -- Choices that go on have null here: the last reason that stands is the one.
  local from = 1
  while true do
    local stop = select(2, find(text, '"finish_reason":', from, true))
    if not stop then break end
    local reason = match(text, '^%s*"([%w_]+)"', stop + 1)
    if reason then txn:set_var("txn.finish_reason", reason) end
    from = stop + 1
  end
end

-- Offsets of the events of a stream that hold usage and nothing else, and where its last whole event ends.
local function usage_only(text)
  local cuts, from = {}, 1
  while true do
    local stop = find(text, "\n\n", from, true)
    if not stop then return cuts, from - 1 end
    local event = sub(text, from, stop + 1)
    if find(event, '"choices":%s*%[%s*%]') and find(event, '"usage":', 1, true) then
      cuts[#cuts + 1] = { from - 1, #event }
    end
    from = stop + 2
  end
end

-- An event that says why the stream ends here, in the form in which engines tell of errors.
local LATE = 'data: {"error":{"message":"The answer was not complete by the deadline of this model’s route.",'
  .. '"type":"api_error","param":null,"code":"deadline_exceeded"}}\n\n'

function Usage:http_payload(txn, message)
  local text = message:body()
  if not text or text == "" then return end
  if self.blanks and not message.channel:is_resp() then
    -- As long as before, so that the length that the head tells stays true.
    message:set(without_controls(text))
    return
  end
  if self.late then return message:remove() end
  if self.deadline and milliseconds() > self.deadline and txn:get_var("txn.stream") == 1 then
    self.late = true
    txn:set_var("txn.refusal", "deadline_exceeded")
    message:set(LATE)
    message:set_eom()
    return
  end
  if self.began and not self.first then
    self.first = true
    txn:set_var("txn.first_ms", milliseconds() - self.began)
  end
  if self.left then
    self.left = self.left - #text
    if self.left < 0 or milliseconds() - self.began > 1000 * COPY_SECONDS then message:set("\n" .. CUT .. "\n") end
  end
  if not self.strip then
    if self.own_form then
      -- These tell their usage at their end alone: what can be said of one whose client left before.
      if not self.answer_bytes then self.final = byte(text) == OPEN end
      self.answer_bytes = (self.answer_bytes or 0) + #text
      txn:set_var("txn.answer_bytes", self.answer_bytes)
    end
    if self.tail then text = self.tail .. text end
    self:read(txn, text)
    self.tail = sub(text, -TAIL_BYTES)
    return
  end
  local cuts, whole_bytes = usage_only(text)
  if message:eom() or #text > 1000000 then whole_bytes = #text end
  self:read(txn, sub(text, 1, whole_bytes))
  -- HAProxy 2.8 does not send the end of an answer when the filter leaves nothing of the piece that came with it. An empty
  -- line means nothing in an event stream.
  local cut_bytes = 0
  for _, cut in ipairs(cuts) do cut_bytes = cut_bytes + cut[2] end
  if message:eom() and cut_bytes == #text then cuts[#cuts][2] = cuts[#cuts][2] - 1 end
  for number = #cuts, 1, -1 do
    message:remove(cuts[number][1], cuts[number][2])
    whole_bytes = whole_bytes - cuts[number][2]
  end
  return whole_bytes
end

core.register_filter("slipway_usage", Usage, function(usage) return usage end)
