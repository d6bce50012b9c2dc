"""`python -m magnetar.demo [flights|drain]`."""

import sys

from magnetar.demo import drain, flights

sys.exit(drain.main() if sys.argv[1:] == ["drain"] else flights.main())
