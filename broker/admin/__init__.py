"""The admin API over HTTP, with Apache's paths, status codes and JSON.

`server.py` puts the subjects together: `topics`, `namespaces`, `cluster`. What all of them share stands here: valid
names (`http.py`), rights (`rights.py`), and the way to the broker that owns a topic (`owners.py`).
`numbers` are statistics and metrics, `page` is the page for people.
"""
