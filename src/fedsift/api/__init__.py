"""The public Python API: run, resume and load a study, audit labels, and the objects that these return."""
