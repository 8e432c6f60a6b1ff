"""What a service shows of its work: operators, hosts, usage, compiled files, and all of it live."""

from tunery.web.views import deliveries, hosts, live, operators, usage

ROUTERS = tuple(part.router for part in (deliveries, hosts, live, operators, usage))
