"""`python -m fedsift` is the `fedsift` command."""

from fedsift.cli.main import main

main()
