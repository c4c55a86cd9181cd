# Every target prepares what it needs, says so, and is quick when it is there already.
.PHONY: setup demo test thorough check escape bench compat agents images mutants reference corpus clean help

BROKER := .venv/bin/broker
PYTEST := .venv/bin/python -m pytest
# Images that the tests start containers from; built once, kept by the engine.
TEST_IMAGES := base python go node

help:  ## say what there is
	@awk -F ':.*##' '/^[a-z]+:.*##/ { printf "  make %-9s%s\n", $$1, $$2 }' Makefile

setup:  ## make .venv with broker in it, and the guard
	@scripts/setup

demo: setup  ## the main job on a real project, with bubblewrap (scripts/demo docker: with Docker)
	@scripts/need-bubblewrap
	@scripts/demo

images: setup  ## the images that the tests use
	@scripts/need-docker
	@$(BROKER) image build $(TEST_IMAGES)

# A skipped engine test is a failure here: everything it needs was just made available.
test: setup images  ## the tests, on both engines (`make thorough`: with the long ones)
	@scripts/need-bubblewrap
	@scripts/need-toolchains
	@sync # what was just installed: or the first records wait for all of it to reach the disk
	BROKER_REQUIRE_ENGINES=1 $(PYTEST) -n 2 --dist loadgroup tests

# The same and what only takes long: whole suites of other frameworks, and on Docker what is not the engine's business.
thorough: setup images  ## every test and the long ones
	@scripts/need-bubblewrap
	@scripts/need-toolchains
	BROKER_REQUIRE_ENGINES=1 $(PYTEST) -n 3 --dist loadgroup -m "not compat" tests

check: setup  ## lint, types, and the layering of the folders
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

escape: setup images  ## the attacks, on both engines
	@scripts/need-bubblewrap
	BROKER_REQUIRE_ENGINES=1 $(PYTEST) tests/escape

# Some tool chains are large: they, and the image that holds them, are installed only for this.
compat: setup images  ## what people run, inside and outside, compared; with the large tool chains
	@scripts/need-bubblewrap
	@scripts/need-toolchains all
	@$(BROKER) image build compat
	BROKER_REQUIRE_ENGINES=1 $(PYTEST) -m "compat or not compat" tests/compat

# Claude Code and Codex are a part of `make test`; here are all six. The agents are kept in ~/.cache/broker-tests.
agents: setup  ## real agents from npm and PyPI, inside, with a scripted model: all of them
	@scripts/need-bubblewrap
	@scripts/need-docker
	@$(BROKER) image build node
	.venv/bin/python tests/agents/installed.py
	BROKER_REQUIRE_ENGINES=1 BROKER_TEST_AGENTS=all $(PYTEST) -m "thorough or not thorough" tests/agents

bench: setup images  ## the figures of docs/benchmarks.md
	@scripts/need-bubblewrap
	.venv/bin/python -m benchmarks

mutants: setup  ## move every row of the classifier's tables one class down, and see that a case fails
	BROKER_MUTANTS=all $(PYTEST) tests/classify/test_mutations.py

corpus: setup  ## how the classifier does on JSON lines of operations: make corpus FILES='a.jsonl b.jsonl'
	.venv/bin/python benchmarks/corpus.py $(FILES)

reference: setup  ## the reference pages of the classifier, made from its tables
	.venv/bin/python -m broker.classify.reference docs

clean:  ## remove what the other targets made in this folder
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f broker/guard/guard
	rm -rf broker/guard/build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
