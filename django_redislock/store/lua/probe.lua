-- probe: whether this node counts the process that asks among those who listen to its channel.
-- KEYS     fence
--            of the same tag as the channel; it is not touched
-- ARGV     channel
-- returns  {how many listen, or the error of the right that is missing, server us, "@" and the node's id on a cluster}
--#include queue
-- not what PUBLISH counts, as long as there is a choice: whoever watches all channels is among them
local heard = tell(ARGV.channel, 'p')
return {type(heard) == 'number' and listeners(ARGV.channel) or heard, us, sender(ARGV.channel)}
