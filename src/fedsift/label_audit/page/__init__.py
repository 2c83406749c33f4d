"""A site's private page: one file without network, to look at the worst labels and to review them."""
