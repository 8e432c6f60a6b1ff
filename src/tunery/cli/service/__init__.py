"""Commands about who tunes where: services, accounts, jobs, hosts and devices."""
