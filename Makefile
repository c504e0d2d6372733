# Each target makes the environment that it needs in .venv; only Python 3.10 to 3.13 and make have to be there.
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint check clean

demo: $(VENV)/.demo  ## train a real model on 4 workers, show the plan, the result and the report
	$(BIN)/python scripts/demo.py

test: $(VENV)/.dev  ## all tests, doctests included
	$(BIN)/python -m pytest

lint: $(VENV)/.dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test  ## the whole gate

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.demo: setup.py scripts/environment.sh
	scripts/environment.sh $(VENV) .
	touch $@

$(VENV)/.dev: setup.py scripts/environment.sh
	scripts/environment.sh $(VENV) '.[dev]'
	touch $@
