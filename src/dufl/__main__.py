"""`python -m dufl`: the same as `dufl`."""

from dufl.cli import main

if __name__ == "__main__":
    main()
