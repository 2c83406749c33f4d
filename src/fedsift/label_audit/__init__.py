"""The label audit: which labels of a site are wrong, how sure that is, and what they should be."""
