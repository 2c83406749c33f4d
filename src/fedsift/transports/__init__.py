"""What carries requests to sites that are not in this process."""
