"""The gateway: the only way from the network to the coordinator, and from a site to the network."""
