# Slipway's commands. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
# Two processes, a file's tests in one of them, the longest files first; the tests of the one real engine run alone.
SHARED := -n 2 --dist loadfile --no-loadscope-reorder
# What touches the database runs a second time, on PostgreSQL: in `make test` where it locks rows, races or rolls up only.
LEDGER_TESTS := $(addprefix tests/, access alerts benchmarks catalog common deployments fleet jobs oncall rollouts studies telemetry) \
  $(addprefix tests/gateway/test_, controller.py keys.py requests.py routes.py) \
  tests/operations/test_backup.py tests/operations/test_demo.py tests/operations/test_local_host.py
LOCKING_TESTS := $(addprefix tests/, access/test_services.py alerts/test_rules.py common/test_commits.py \
  deployments/test_claims.py deployments/test_services.py fleet/test_broker_users.py fleet/test_credentials.py fleet/test_join.py \
  gateway/test_controller.py gateway/test_keys.py jobs/test_reconcile.py operations/test_backup.py rollouts/test_driver.py \
  telemetry/test_ingest.py)
ON_POSTGRES := $(PYTHON) -m tests.on_postgres $(BIN)/pytest $(SHARED) -m "not live and not browser and not long"

help:  ## List the commands
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(VENV)/.installed  ## Make .venv and install Slipway into it
	@echo "setup: Slipway is installed; $(BIN)/slipway works" >&2

demo: setup  ## Bring up the console, an engine and a real small model on this machine
	@exec $(PYTHON) manage.py demo

up: setup  ## Bring up the console alone
	@exec $(PYTHON) manage.py up

demo-down: setup  ## Stop the console and all engines of this machine
	@exec $(PYTHON) manage.py demo_down

check: $(VENV)/.installed-dev  ## Run every linter
	@.ci/check

test: $(VENV)/.installed-dev  ## Run the tests, with a real engine and a real browser (20 minutes at most)
	@$(PYTHON) -m tests.tools
	engine=$$($(PYTHON) -m tests.engine)
	eval "$$engine"
	only() { "$$@" || [ $$? -eq 5 ]; }  # 5: none of the tests that PYTEST asks for is among these
	only $(BIN)/pytest $(SHARED) -m "not long and not live" $(PYTEST)
	only $(BIN)/pytest -m "live and not long" $(PYTEST)
	$(ON_POSTGRES) $(LOCKING_TESTS)

test-all: $(VENV)/.installed-dev  ## Run every test and write docs/evidence/tests.md
	@$(PYTHON) -m tests.tools --long
	engine=$$($(PYTHON) -m tests.engine --second)
	eval "$$engine"
	$(PYTHON) -m pytest -p tests.evidence --evidence docs/evidence/tests.md $(PYTEST)
	$(ON_POSTGRES) $(LEDGER_TESTS)

bench: $(VENV)/.installed-dev  ## Measure, and write build/bench.json
	@engine=$$($(PYTHON) -m tests.engine)
	eval "$$engine"
	$(PYTHON) -m bench

clean:  ## Remove .venv, build results and caches; SLIPWAY_HOME stays
	@rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for what running needs, one for what developing needs; both are made anew when pyproject.toml changes.
$(VENV)/.installed: pyproject.toml
	@.ci/install "$(VENV)" .
	touch $@

$(VENV)/.installed-dev: pyproject.toml
	@.ci/install "$(VENV)" ".[dev]"
	touch $(VENV)/.installed $@

.PHONY: help setup demo up demo-down check test test-all bench clean
