"""A daemon that runs jobs for anybody who asks on this machine.

local     the daemon: a room of jobs behind a unix socket
client    what the commands ask it with
"""
