#!/bin/sh
# Pins every dependency with its hashes, one file for each way of using the project. Run by `make requirements`.
set -eu
export PIP_FIND_LINKS=
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet pip-tools
pin() {
    output=$1
    shift
    CUSTOM_COMPILE_COMMAND="make requirements" "$tools/bin/pip-compile" --quiet --generate-hashes --no-emit-index-url \
        --no-emit-find-links --strip-extras --allow-unsafe --output-file="requirements/$output" "$@" pyproject.toml
}
pin dev.txt --extra dev --extra spark --extra demo --extra tracing
pin base.txt --constraint requirements/dev.txt
pin spark.txt --constraint requirements/dev.txt --extra spark
pin demo.txt --constraint requirements/dev.txt --extra spark --extra demo
# The tools that build the site have nothing to do with what they describe.
CUSTOM_COMPILE_COMMAND="make requirements" "$tools/bin/pip-compile" --quiet --generate-hashes --no-emit-index-url \
    --no-emit-find-links --strip-extras --allow-unsafe --output-file=requirements/docs.txt requirements/docs.in
# Tests put these before our own packages, so what both have is the same; but for PySpark.
grep '^[a-z].*==' requirements/dev.txt | grep -v '^pyspark==' | sed 's/ .*//' >"$tools/constraint.txt"
CUSTOM_COMPILE_COMMAND="make requirements" "$tools/bin/pip-compile" --quiet --generate-hashes --no-emit-index-url \
    --no-emit-find-links --strip-extras --allow-unsafe --no-annotate --constraint "$tools/constraint.txt" \
    --output-file=requirements/lakehouse.txt requirements/lakehouse.in
# What services on the web run in, whose blocks in docs/topic-api.md are tests (tests/process/test_web_services.py).
CUSTOM_COMPILE_COMMAND="make requirements" "$tools/bin/pip-compile" --quiet --generate-hashes --no-emit-index-url \
    --no-emit-find-links --strip-extras --allow-unsafe --no-annotate --constraint "$tools/constraint.txt" \
    --output-file=requirements/web.txt requirements/web.in
