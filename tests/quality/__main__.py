import sys

from tests.quality.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
