"""The coordinator: its roster, starting and following a run, and its Flower ServerApp."""
