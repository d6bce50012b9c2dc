"""The ground on which broker, bookie, auto-recovery and connectors stand. It knows none of them."""
