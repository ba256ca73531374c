"""`python -m perfsim`: the command line."""

from perfsim.cli import main

if __name__ == "__main__":
    main()
