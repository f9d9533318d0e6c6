# make demo            four organisations fine-tune a real model (MODE=lora or MODE=full)
# make demo-secure     the same, and the server learns nothing but the sum of the updates
# make demo-deployment the same as a deployment: SuperLink, four SuperNodes, TLS, node keys
# make test            all tests
# make check           what a change has to pass: ruff, mypy --strict, import-linter, tests
# make clean           remove what make and the tools made; runs/ and downloads stay

PYTHON ?= python3
MODE   ?= lora
ARGS   ?=

BIN     := .venv/bin
INSTALL := .venv/.installed

.PHONY: help demo demo-secure demo-deployment test check clean

help:
	@sed -n "s/^# make/make/p" Makefile

$(INSTALL): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is" "$$($(PYTHON) --version 2>&1)." \
	    "Name another one: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install -c constraints.txt -e '.[demo,simulation,dev]'
	@touch $@

demo: $(INSTALL)
	$(BIN)/distro-fed demo --mode $(MODE) $(ARGS)

demo-secure: $(INSTALL)
	$(BIN)/distro-fed demo-secure $(ARGS)

demo-deployment: $(INSTALL)
	$(BIN)/distro-fed demo-deployment $(ARGS)

# One thread each for two test processes: two threads that wait for each other are slower than one.
test: $(INSTALL)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile $(ARGS)

check: $(INSTALL)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
