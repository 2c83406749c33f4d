"""`python -m fedsift` is the `fedsift` command."""

from fedsift.cli import main

main()
