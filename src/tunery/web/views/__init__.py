"""What a service tells: of networks, operators, hosts, usage, compiled files, and all of it live."""

from tunery.web.views import deliveries, hosts, live, measurements, networks, operators, reports, usage

ROUTERS = tuple(part.router for part in (deliveries, hosts, live, measurements, networks, operators, reports, usage))
