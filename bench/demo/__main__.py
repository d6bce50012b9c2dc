"""`python -m bench.demo [flights|drain|failover]`."""

import sys

from bench.demo import drain, failover, flights

DEMOS = {"flights": flights.main, "drain": drain.main, "failover": failover.main}

name = " ".join(sys.argv[1:]) or "flights"
sys.exit(DEMOS[name]() if name in DEMOS else f"no demo {name}; there are {', '.join(DEMOS)}")
