"""Statistics of topics and the metrics of a broker, with Apache's names."""
