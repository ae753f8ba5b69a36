-- Sliding minutes of many subjects: corrections first, then reserves in order, in one atomic step and one round trip.
--
-- A subject is a hash: `requests` and `tokens` are running totals of its buckets of one second (`r<second>`, `t<second>`) from
-- `oldest` to that of `last`, the instant of its last charge; `l<second>` is that of a bucket's own. A bucket is counted until
-- that instant is a minute ago. What counts no more is subtracted when the subject is next touched, each bucket once, so a call
-- costs a few fields and not 61 of each.
--
-- Instants are whole microseconds of this server's time, and none is before one at which anything was charged: when the wall
-- clock goes back, what is lost is added from then on (`lag`). Keys are made here and lie anywhere, so this does not run on
-- Redis Cluster.
--
-- ARGV[1], in MessagePack: {epoch if there is none, {{name, epoch, at, requests, tokens, more}, ...},
--                           {{tokens, {{name, requests limit, tokens limit, requests slice, tokens slice}, ...}}, ...}}
-- with -1 for no limit. `more` are tokens that an answer has cost beyond its reservation: where its bucket counts no more they are
-- charged to this second's. Replies, in MessagePack: {epoch, now, {verdict, ...}}, a verdict being
--   {0, last, {requests, tokens, requests granted, tokens granted} of each subject, totals after the grant}
--   {which subject, 1 if its tokens, when there is room, last, requests, tokens}, the last three being the first subject's
local WINDOW = 60
local US = 1000000
local WINDOW_US = WINDOW * US
local KEPT_MS = 70000
local CLOCK = 'batcher:limits:clock'
local PREFIX = 'batcher:limits:of:'

local ask = cmsgpack.unpack(ARGV[1])
local time = redis.call('TIME')
local wall = tonumber(time[1]) * US + tonumber(time[2])
local clock = redis.call('HMGET', CLOCK, 'epoch', 'wall', 'lag')
local epoch, seen, lag = clock[1], tonumber(clock[2] or wall), tonumber(clock[3] or 0)
if not epoch then
    epoch = ask[1] .. time[1] .. time[2]
    redis.call('HSET', CLOCK, 'epoch', epoch, 'wall', wall, 'lag', 0)
elseif wall < seen then
    lag = lag + seen - wall
    redis.call('HSET', CLOCK, 'wall', wall, 'lag', lag)
end
local now = wall + lag
local second = math.floor(now / US)
local border = second - WINDOW -- Its bucket alone may count or not; those after it do, those before it do not.

local windows = {}

local function window(name)
    local it = windows[name]
    if it then
        return it
    end
    local key = PREFIX .. name
    local has = redis.call('HMGET', key, 'requests', 'tokens', 'oldest', 'last', 'r' .. second, 't' .. second, 'l' .. border)
    it = {
        key = key,
        requests = tonumber(has[1] or 0),
        tokens = tonumber(has[2] or 0),
        oldest = tonumber(has[3] or second),
        last = tonumber(has[4] or now),
        is_new_second = not has[5],
        r = tonumber(has[5] or 0),
        t = tonumber(has[6] or 0),
        gone = {},
    }
    local last_old = border
    if has[7] and tonumber(has[7]) + WINDOW_US > now then
        last_old = border - 1
    end
    if it.last + WINDOW_US <= now then
        redis.call('DEL', key)
        it.requests, it.tokens, it.oldest, it.last = 0, 0, second, now
    elseif it.oldest <= last_old then
        local gone = {}
        for old = it.oldest, last_old do
            gone[#gone + 1] = 'r' .. old
            gone[#gone + 1] = 't' .. old
            gone[#gone + 1] = 'l' .. old
        end
        local held = redis.call('HMGET', key, unpack(gone))
        for i = 1, #gone, 3 do
            it.requests = it.requests - tonumber(held[i] or 0)
            it.tokens = it.tokens - tonumber(held[i + 1] or 0)
        end
        it.gone, it.oldest, it.is_changed = gone, last_old + 1, true
    end
    windows[name] = it
    return it
end

local function charge(it, requests, tokens)
    it.requests, it.tokens = it.requests + requests, it.tokens + tokens
    it.r, it.t = it.r + requests, it.t + tokens
    it.last, it.is_changed, it.is_charged = now, true, true
end

local function correct(name, of_epoch, at, requests, tokens, more)
    if of_epoch ~= epoch then
        return -- What this store has forgotten is not given back to it.
    end
    local it = window(name)
    local r, t
    if at == second and not it.is_new_second then
        r, t = it.r, it.t
    elseif at >= it.oldest and at < second then
        local has = redis.call('HMGET', it.key, 'r' .. at, 't' .. at)
        if has[1] then
            r, t = tonumber(has[1]), tonumber(has[2])
        end
    end
    if not r then
        if more > 0 then
            charge(it, 0, more)
        end
        return
    end
    local new_r, new_t = math.max(0, r + requests), math.max(0, t + tokens + more)
    it.requests = it.requests + new_r - r
    it.tokens = it.tokens + new_t - t
    it.is_changed = true
    if at == second then
        it.r, it.t, it.is_charged = new_r, new_t, true
    else
        redis.call('HSET', it.key, 'r' .. at, new_r, 't' .. at, new_t)
    end
end

-- What each second from `oldest` to the last one holds, and its last charge, read once for all refusals of a call.
local function history(it)
    local fields, r, t, l = {}, {}, {}, {}
    local all = redis.call('HGETALL', it.key)
    for i = 1, #all, 2 do
        fields[all[i]] = all[i + 1]
    end
    for at = it.oldest, second - 1 do
        r[#r + 1] = tonumber(fields['r' .. at] or 0)
        t[#t + 1] = tonumber(fields['t' .. at] or 0)
        l[#l + 1] = tonumber(fields['l' .. at] or 0)
    end
    return {r = r, t = t, l = l}
end

-- The instant from which so much more of this column than there is will have gone.
local function room_at(it, column, over)
    it.history = it.history or history(it)
    for i, held in ipairs(it.history[column]) do
        over = over - held
        if over <= 0 then
            return it.history.l[i] + WINDOW_US
        end
    end
    return it.last + WINDOW_US
end

local function grant(it, subject)
    local requests, tokens = subject[4], subject[5]
    if requests == 0 and tokens == 0 then
        return 0, 0
    end
    if subject[2] >= 0 then
        requests = math.min(requests, subject[2] - it.requests)
    end
    if subject[3] >= 0 then
        tokens = math.min(tokens, subject[3] - it.tokens)
    end
    if (subject[4] > 0 and requests <= 0) or (subject[5] > 0 and tokens <= 0) then
        return 0, 0 -- Half a slice admits nothing.
    end
    charge(it, requests, tokens)
    return requests, tokens
end

local function reserve(tokens, subjects)
    local which, is_tokens, at = 0, 0, 0
    for i, subject in ipairs(subjects) do
        local it = window(subject[1])
        local over_requests, over_tokens = it.requests + 1 - subject[2], it.tokens + tokens - subject[3]
        if subject[2] >= 0 and over_requests > 0 then
            local room = room_at(it, 'r', over_requests)
            if room > at then
                which, is_tokens, at = i, 0, room
            end
        end
        if subject[3] >= 0 and over_tokens > 0 then
            local room = room_at(it, 't', over_tokens)
            if room > at then
                which, is_tokens, at = i, 1, room
            end
        end
    end
    local first = window(subjects[1][1])
    if which > 0 then
        return {which, is_tokens, at, first.last, first.requests, first.tokens}
    end
    for _, subject in ipairs(subjects) do
        charge(window(subject[1]), 1, tokens)
    end
    local verdict = {0, first.last}
    for _, subject in ipairs(subjects) do
        local it = window(subject[1])
        local requests_granted, tokens_granted = grant(it, subject)
        verdict[#verdict + 1] = {it.requests, it.tokens, requests_granted, tokens_granted}
    end
    return verdict
end

for _, correction in ipairs(ask[2]) do
    correct(unpack(correction))
end
local verdicts = {}
for i, one in ipairs(ask[3]) do
    verdicts[i] = reserve(one[1], one[2])
end
local is_changed = false
for _, it in pairs(windows) do
    if it.is_changed then
        is_changed = true
        redis.call('HSET', it.key, 'requests', it.requests, 'tokens', it.tokens, 'oldest', it.oldest, 'last', it.last)
    end
    if #it.gone > 0 then
        redis.call('HDEL', it.key, unpack(it.gone))
    end
    if it.is_charged then
        redis.call('HSET', it.key, 'r' .. second, it.r, 't' .. second, it.t, 'l' .. second, it.last)
        if it.is_new_second then
            redis.call('PEXPIRE', it.key, KEPT_MS)
        end
    end
end
if is_changed then
    redis.call('HSET', CLOCK, 'wall', wall) -- What was counted at this instant is never looked at from before it.
end
return cmsgpack.pack({epoch, now, verdicts})
