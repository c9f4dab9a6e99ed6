"""`python -m proxy` is `specswitch`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
