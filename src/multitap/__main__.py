"""`python -m multitap` is `multitap`."""

from multitap.cli import main

if __name__ == "__main__":
    main()
