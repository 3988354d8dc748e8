"""`python -m bayou` is the command `bayou`."""

if __name__ == "__main__":
    from bayou.cli import main

    main()
