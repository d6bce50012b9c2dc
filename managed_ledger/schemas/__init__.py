"""The schemas of a topic, and whether one can read what another wrote."""
