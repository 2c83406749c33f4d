"""The vocabulary that methods, sites and transports share: requests, replies, the federation, stages, notebooks."""
