"""`python -m magnetar.demo [flights|drain|failover]`."""

import sys

from magnetar.demo import drain, failover, flights

DEMOS = {"flights": flights.main, "drain": drain.main, "failover": failover.main}

name = " ".join(sys.argv[1:]) or "flights"
sys.exit(DEMOS[name]() if name in DEMOS else f"no demo {name}; there are {', '.join(DEMOS)}")
