-- Who answers which idempotent request, and the answers kept. A scope is a hash: `body`, and `holder` while it is claimed or
-- `reply` once it is answered. It goes by itself when the claim or the keeping is over. KEPT orders the answers by age, so that
-- the oldest can go when there are too many; keys are made here, so this does not run on Redis Cluster.
--
-- ARGV: 'claim', scope, holder, body, ms        -> {'claimed'}, {'in_flight'}, {'mismatch'} or {'kept', reply}
--       'renew', scope, holder, ms
--       'keep', scope, holder, reply, ms, most answers
--       'release', scope, holder                -> the last three change nothing unless the holder has the claim
local KEPT = 'batcher:claims:kept'
local PREFIX = 'batcher:claims:of:'
local MAX_DROPPED = 8

local act, scope, holder = ARGV[1], ARGV[2], ARGV[3]
local key = PREFIX .. scope

if act == 'claim' then
    local has = redis.call('HMGET', key, 'body', 'holder', 'reply')
    if not has[1] then
        redis.call('HSET', key, 'body', ARGV[4], 'holder', holder)
        redis.call('PEXPIRE', key, ARGV[5])
        return {'claimed'}
    end
    if has[1] ~= ARGV[4] then
        return {'mismatch'}
    end
    if has[3] then
        return {'kept', has[3]}
    end
    return {has[2] == holder and 'claimed' or 'in_flight'} -- Its own: the reply to an earlier try was lost.
end

if redis.call('HGET', key, 'holder') ~= holder then
    return {'not_held'}
end
if act == 'renew' then
    redis.call('PEXPIRE', key, ARGV[4])
elseif act == 'release' then
    redis.call('DEL', key)
elseif act == 'keep' then
    local now = redis.call('TIME')[1]
    redis.call('HSET', key, 'reply', ARGV[4])
    redis.call('HDEL', key, 'holder')
    redis.call('PEXPIRE', key, ARGV[5])
    redis.call('ZADD', KEPT, now, scope)
    -- More go than come, so none piles up, and few enough that nobody waits for it.
    local expired = redis.call('ZRANGEBYSCORE', KEPT, '-inf', '(' .. now - ARGV[5] / 1000, 'LIMIT', 0, MAX_DROPPED)
    if #expired > 0 then
        redis.call('ZREM', KEPT, unpack(expired))
    end
    local over = math.min(MAX_DROPPED, redis.call('ZCARD', KEPT) - ARGV[6])
    if over > 0 then
        local oldest = redis.call('ZPOPMIN', KEPT, over)
        for i = 1, #oldest, 2 do
            -- It may have expired and be claimed anew.
            if redis.call('HEXISTS', PREFIX .. oldest[i], 'reply') == 1 then
                redis.call('DEL', PREFIX .. oldest[i])
            end
        end
    end
end
return {'done'}
