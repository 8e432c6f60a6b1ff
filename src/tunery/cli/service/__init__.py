"""Commands about who tunes where: services, accounts, jobs, hosts and devices."""

from tunery.cli.service import accounts, devices, hosts, jobs, serve

__all__ = ["accounts", "devices", "hosts", "jobs", "serve"]
