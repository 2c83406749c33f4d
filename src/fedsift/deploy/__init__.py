"""Deployment on Flower: the gateway, the sites, the coordinator, and a trial of all of them on one machine."""
