"""`python -m magnetar.demo [flights|drain|failover]`."""

import sys

from magnetar.demo import drain, failover, flights

DEMOS = {"flights": flights.main, "drain": drain.main, "failover": failover.main}

sys.exit(DEMOS.get(" ".join(sys.argv[1:]), flights.main)())
