"""The gateway between the network and Flower: proxy, TLS listener, limits and access log."""
