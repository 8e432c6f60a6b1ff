"""The service on the network: an HTTP application over the manager of jobs, and its client."""
