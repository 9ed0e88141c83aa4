import sys

from tests.measure.quality.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
