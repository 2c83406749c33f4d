"""The terms that methods, sites and transports share: requests, replies, the federation, stages, notebooks."""
