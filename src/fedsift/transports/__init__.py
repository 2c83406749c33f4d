"""Transports: they carry requests to sites that are not in this process."""
