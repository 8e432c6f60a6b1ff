"""What a service tells: of networks, operators, hosts, usage, compiled files, and all of it live."""

from tunery.web.views import hosts, live, measurements, networks, operators, usage

ROUTERS = tuple(part.router for part in (hosts, live, measurements, networks, operators, usage))
