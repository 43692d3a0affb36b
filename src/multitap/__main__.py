"""`python -m multitap` is `multitap`."""

from _multitap import main

if __name__ == "__main__":
    main()
