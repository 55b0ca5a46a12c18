"""The full fault runs: `scripts/soak <name>`."""

from tests.faults.full import main

if __name__ == "__main__":
    main()
