"""fedsift: federated learning where labels cannot be trusted."""

__version__ = "0.1.0"
