"""`python -m perdure_conformance` is the command `perdure-conformance`."""

from perdure_conformance.cli import main

if __name__ == "__main__":
    main()
