"""`python -m torchtap.cli` is the command `torchtap`, also where it is not installed."""

from torchtap.cli import main

if __name__ == "__main__":
    main()
