# Two commands do all the set-up:  make study   make test
#
#   PYTHON=python3.12 make study     another interpreter (3.11 or later)
#   VENV=/somewhere/else make test   another virtual environment
#   make test ARGS="-m slow"         more arguments for pytest

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# Tests run on all cores, at most four; PARALLEL= runs them in one process.
PARALLEL ?= -n auto --maxprocesses 4 --dist worksteal

BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
PACKAGING = pyproject.toml hatch_build.py
STUDY = gpt3_20b
OLDEST = $(addprefix tests/unit/,api catalog cli costs engine interop network report studies)

.DEFAULT_GOAL = help
.DELETE_ON_ERROR:
.PHONY: help study test lint format types layers benchmarks regret seeds showdown mutations fuzz gallery oldest answers records clean distclean

help: ## What can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

study: $(VENV)/.installed ## Install, run the main study, say where its report is
	@$(BIN)/perfsim study $(STUDY) --compare 3d,weight-streaming
	@echo "Open in a browser: $(CURDIR)/reports/$(STUDY)/index.html"

test: $(VENV)/.installed-dev ## Install with the development tools, run the tests
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

lint: $(VENV)/.installed-dev ## Lint and check the format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## Mend what can be mended by itself
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(VENV)/.installed-dev ## Check the types
	@$(BIN)/mypy

layers: $(VENV)/.installed-dev ## Check that imports point down
	@$(BIN)/lint-imports

benchmarks: $(VENV)/.installed-dev ## Measure speed, write reports/benchmarks.md
	@PERFSIM_BENCHMARKS=reports/benchmarks.md $(BIN)/python -m pytest -q -m benchmark tests/benchmarks

regret: $(VENV)/.installed-dev ## Compare picks with a wide search, write reports/regret.md
	@PERFSIM_REGRET=reports/regret.md $(BIN)/python -m pytest -q -m slow tests/regret

seeds: $(VENV)/.installed-dev ## Answer the claims of the four documents, write reports/seeds.md
	@PERFSIM_SEEDS=reports/seeds.md $(BIN)/python -m pytest -q -m "slow or not slow" tests/seeds

answers: $(VENV)/.installed-dev ## Write today's answers, which tests compare with
	@PERFSIM_RECORD=1 $(BIN)/python -m pytest -q tests/records

showdown: $(VENV)/.installed-dev ## Other simulators on the same published runs, write reports/showdown.md
	@PERFSIM_SHOWDOWN=reports/showdown.md $(BIN)/python -m pytest -q -m "slow or not slow" tests/showdown

gallery: $(VENV)/.installed-dev ## Answer all shipped studies, write reports/gallery; ARGS="--skip NAME,NAME" leaves out
	@$(BIN)/python docs/gallery.py $(ARGS)

fuzz: $(VENV)/.installed-dev ## 20,000 wrong files to every verb, write reports/robustness.md
	@PERFSIM_FUZZ=reports/robustness.md $(BIN)/python -m pytest -q -m slow tests/fuzz

mutations: $(VENV)/.installed-dev ## Put faults into schedules and code, write reports/mutations.md
	@$(BIN)/perfsim prove $(STUDY) --mutations reports/mutations.md --every 43
	@$(BIN)/python -m pytest $(PARALLEL) -q --cov=perfsim --cov-context=test --cov-report= --ignore=tests/browser
	@$(BIN)/python tests/mutation/mutants.py --seed 1 --count 180 --page reports/mutations.md

records: ## Make every report of reports/ anew (hours), and note the commit of each
	@$(MAKE) answers seeds regret showdown fuzz mutations benchmarks
	@$(BIN)/perfsim validate --record --leave-out --page reports
	@$(BIN)/python tests/records/reports.py $(notdir $(filter-out reports/README.md,$(wildcard reports/*.md)))

oldest: ## Run a part of the tests with the lowest releases that pyproject.toml allows
	@rm -rf $(VENV)-oldest && $(PYTHON) -m venv $(VENV)-oldest
	@$(PYTHON) tests/packaging/lower_bounds.py > $(VENV)-oldest/lowest.txt
	@$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check -r $(VENV)-oldest/lowest.txt
	@PYTHONPATH=$(CURDIR) $(VENV)-oldest/bin/python -m pytest -q -p no:cacheprovider $(OLDEST)

clean: ## Remove caches and builds
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find . -path './.*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## The same, and the virtual environment
	test ! -f "$(VENV)/pyvenv.cfg" || rm -rf "$(VENV)"

# A stamp for each of the three steps: what is done is not done again. The install is editable, so
# only a change of the packaging itself makes it stale.
$(VENV)/.created:
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "There is no '$(PYTHON)' here. Install Python 3.11 or later, or name one: make PYTHON=..." >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "perfsim needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	    echo "If a newer one is installed, name it: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	    exit 1; }
	@"$(BIN)/python" -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv "$(VENV)" || { \
	    echo "No virtual environment could be made. On Debian or Ubuntu: apt-get install python3-venv" >&2; \
	    exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.created $(PACKAGING)
	@echo "Installing perfsim into $(VENV) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created $(PACKAGING)
	@echo "Installing perfsim and its development tools into $(VENV) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
