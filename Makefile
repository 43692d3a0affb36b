# Everything a developer runs. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
TRIAL := .venv-trial
SITE := .venv-docs
BIN := $(VENV)/bin
LOCK := requirements/dev.txt
SITE_LOCK := requirements/docs.txt
# Tests wait for programs about as long as they work: some more than there are processors keep those busy.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 3)
EXAMPLES ?= 1000
UV := $(shell command -v uv 2>/dev/null)

# The tests start thousands of interpreters; without stored byte code each compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup test tests lint format types fast slow wide conformance fuzz attack soak demo run bench schema map reference docs lock clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## Create .venv with the locked tools and this project in it

test: lint  ## Everything that must hold: format, lint, types, import rules, tests
	@$(MAKE) --no-print-directory --jobs=2 types tests  # tests leave some processor time

tests: setup  ## All tests that `make test` runs
	$(call run_tests,not wide)

lint: setup  ## Format, lint and import rules, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

format: setup  ## Format, and fix what can be fixed automatically
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup  ## mypy and pyright
	@$(BIN)/pyright & pyright=$$!; $(BIN)/mypy; mypy=$$?; wait $$pyright && exit $$mypy

# Thousands of tests start real programs side by side, and a busy machine may delay one of them for too long.
# A test that fails there must pass alone right afterwards; one that fails twice has failed. More than RETRY=5
# failures have another cause, and so has any other exit code: interrupted, a wrong option, an error of pytest.
RETRY ?= 5
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder
ALONE := --last-failed --last-failed-no-failures none --numprocesses 0

define run_tests
	@$(BIN)/python -m pytest -m "$(1)" $(SIDE_BY_SIDE) || { code=$$?; \
		[ $$code -eq 1 ] && [ $(RETRY) -gt 0 ] || exit $$code; \
		failed=$$($(BIN)/python -m pytest -m "$(1)" $(ALONE) --collect-only | grep ::); \
		[ -n "$$failed" ] && [ $$(echo "$$failed" | wc -l) -le $(RETRY) ] || exit 1; \
		echo "again, alone:"; echo "$$failed"; \
		$(BIN)/python -m pytest -m "$(1)" $(ALONE); }
endef

fast: setup  ## The tests that take seconds; RETRY=0 runs none of them twice
	$(call run_tests,not slow and not wide)

slow: setup  ## The tests that take minutes: real servers, many processes
	$(call run_tests,slow and not wide)

conformance: setup  ## Run the official conformance suite on our gateway and client
	$(BIN)/python -m pytest tests/conformance

wide: setup  ## Even longer tests: every flood, SDK releases, real agents; downloads 1.3 GB once
	$(BIN)/python -m pytest -m wide

fuzz: setup  ## Fuzz our HTTP and try all properties for minutes, with EXAMPLES=1000 for each
	MULTITAP_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/fuzz --numprocesses $(WORKERS) --dist worksteal
	MULTITAP_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -m "hypothesis and not slow and not wide and not soak" \
		--ignore tests/fuzz --timeout 1200 --numprocesses $(WORKERS) --dist worksteal

attack: MINUTES ?= 5
attack: setup  ## Attack the commands and a gateway for MINUTES=5 with random parts; ONLY=… SEED=… repeats a finding
	$(BIN)/python -m tests.attacks.redteam.campaign --minutes $(MINUTES) $(if $(ONLY),--only "$(ONLY)") $(if $(SEED),--seed $(SEED))

soak: MINUTES ?= 60
soak: CLUSTER_MINUTES ?= 10
soak: setup  ## The promises at full size: 10,000 simulated runs, a million lines, chaos for an hour
	$(BIN)/python -m pytest -m soak tests/soak/test_simulation.py tests/soak/test_lines.py \
		--numprocesses $(WORKERS) --dist worksteal
	MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak tests/soak/test_chaos.py
	CLUSTER_MINUTES=$(CLUSTER_MINUTES) $(BIN)/python -m pytest -m soak tests/soak/test_cluster.py

demo: $(TRIAL)/.installed  ## Watch a hub at work with the bundled servers
	$(TRIAL)/bin/python -m multitap.demo

run: $(TRIAL)/.installed  ## Serve the bundled servers to any MCP client, and print how to connect
	$(TRIAL)/bin/multitap serve --http 127.0.0.1:3000 --demo

bench: setup  ## Measure, and write docs/performance.md; QUICK=1 writes nothing
	$(BIN)/python -m bench $(if $(QUICK),--quick)

schema: setup  ## Regenerate schema/ from the code
	$(BIN)/multitap config schema > schema/multitap.schema.json
	$(BIN)/python -m scripts.env_schema > schema/env-protocol.json

map: setup  ## Renew the picture of the packages in docs/internals.md
	$(BIN)/python -m scripts.package_map

reference: setup  ## Write the reference pages of docs/ from the code
	$(BIN)/python -m scripts.reference

docs: $(SITE)/.locked  ## Build the documentation as a site, into site/
	$(SITE)/bin/python -m scripts.docs_site gather
	$(SITE)/bin/zensical build --clean --strict
	$(SITE)/bin/python -m scripts.docs_site finish

COMPILE := $(BIN)/uv pip compile --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-header --quiet

lock: setup  ## Update the locked dependency versions
	$(COMPILE) pyproject.toml --group dev --output-file $(LOCK)
	$(COMPILE) --group docs --output-file $(SITE_LOCK)

clean:  ## Remove everything that make created
	rm -rf $(VENV) $(TRIAL) $(SITE) site build dist .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Another interpreter rebuilds the environment, too: `make PYTHON=…` must not reuse an old one.
CHOSEN := $(shell $(PYTHON) -c 'import sys; print(*sys.version_info[:3], sys.base_prefix)' 2>/dev/null)
ifneq ($(CHOSEN),$(shell cat $(VENV)/.python 2>/dev/null))
.PHONY: $(VENV)/.locked
endif

# A changed lock rebuilds the environment, so that nothing old lingers.
$(VENV)/.locked: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one, as in: make PYTHON=python3.12" >&2; exit 1; }
	rm -rf $(VENV)
ifdef UV
	$(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --requirement $(LOCK)
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCK)
endif
	echo "$(CHOSEN)" > $(VENV)/.python
	touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
ifdef UV
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
else
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
endif
	touch $@

# Trying it out needs only the package, not the developers' tools.
$(TRIAL)/.installed: pyproject.toml
	$(PYTHON) -m venv $(TRIAL)
	$(TRIAL)/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

# The site's tools are apart from the others: they are many, and only writers need them.
$(SITE)/.locked: $(SITE_LOCK)
	rm -rf $(SITE)
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(SITE_LOCK)
	touch $@
