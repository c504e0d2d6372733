"""``python -m caramel`` is the command ``caramel``."""

from caramel.cli.main import main

if __name__ == "__main__":
    main(prog_name="caramel")
