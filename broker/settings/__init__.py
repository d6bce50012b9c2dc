"""The settings of a broker under Apache's names, and those that change while it runs."""
