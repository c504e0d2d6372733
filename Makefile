# Each target makes the environment that it needs in .venv; only Python 3.10 to 3.13 and make have to be there.
VENV := .venv
BIN := $(VENV)/bin
NAME := local
OPTIONS :=
# In their own order: else those files come last that have the fewest tests, and some of these are the longest.
PARALLEL := --numprocesses 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo test lint check docs browser soak matrix horovod bench bench-quick bench-emulated bench-collectives bench-shared-hosts bench-models bench-planning bench-pull-orders bench-tuning bench-schedulers bench-mixtures bench-papers device clean

demo: $(VENV)/.demo  ## train a real model on 4 workers, show the plan, the result and the report
	$(BIN)/python scripts/demo.py

test: $(VENV)/.dev  ## the tests but those of `make soak`, doctests included; a file's tests stay in one process
	$(BIN)/python -m pytest $(PARALLEL)

lint: $(VENV)/.dev  ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test  ## the whole gate

docs: $(VENV)/.dev  ## the documentation as a site, in build/docs; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	@echo build/docs/index.html

browser: $(VENV)/.browser  ## look at a report in a headless Chromium of the system; screenshots in build/browser
	CARAMEL_SCREENSHOTS=build/browser $(BIN)/python -m pytest tests/report/test_browser.py
	@ls build/browser/*.png || { echo "nothing was looked at: a Chromium of the system is needed"; exit 1; }

soak: $(VENV)/.dev  ## the cross product of optimizers, features and numbers of workers, climbs against the planner, large networks; many hours
	$(BIN)/python -m pytest -m soak $(PARALLEL) --dist load

matrix: $(VENV)/.dev  ## the built wheel with each version of TensorFlow and Keras that it allows; downloads some GB, half an hour and more
	$(BIN)/python -m benchmarks.versions

bench-collectives: $(VENV)/.dev  ## all-reduces against TensorFlow's; as root also on hosts with shaped links
	$(BIN)/python -m benchmarks.collectives --json benchmarks/results/collectives_local.json
	[ "$$(id -u)" != 0 ] || $(BIN)/python -m benchmarks.collectives --workers 4 --rate 500mbit \
		--json benchmarks/results/collectives_shaped.json

bench-shared-hosts: $(VENV)/.dev  ## all-reduces where several workers share a host and its link; needs root
	$(BIN)/python -m benchmarks.shared_hosts --workers-on-host 2 --workers-on-host 4 --json benchmarks/results/shared_hosts.json

bench-models: $(VENV)/.dev  ## compile VGG, ResNets, Inception, MobileNets, EfficientNet and BERT; the time and memory of each stage
	$(BIN)/python -m benchmarks.models --json benchmarks/results/models.json

bench-planning: $(VENV)/.dev  ## predicted steps from 10 Mbit/s to 100 Gbit/s, by policy
	$(BIN)/python -m benchmarks.planning --json benchmarks/results/planning.json

bench-pull-orders: $(VENV)/.dev  ## parameter servers with pulls in an order and in none, on emulated accelerators; needs root
	$(BIN)/python -m benchmarks.pull_orders --json benchmarks/results/pull_orders.json $(OPTIONS)

bench-tuning: $(VENV)/.dev  ## trials that searches for pieces and credit need, by replay on a grid measured on emulated accelerators; needs root
	$(BIN)/python -m benchmarks.tuning_replay --json benchmarks/results/tuning_replay.json $(OPTIONS)

bench-schedulers: $(VENV)/.dev  ## every scheduler of the papers, measured and predicted, on emulated accelerators; an hour, resumable; needs root
	$(BIN)/python -m benchmarks.schedulers --json benchmarks/results/schedulers.json $(OPTIONS)

bench-mixtures: $(VENV)/.dev  ## tables whose rows are at workers, and on parameter servers, on emulated accelerators; needs root
	$(BIN)/python -m benchmarks.mixtures --json benchmarks/results/mixtures.json $(OPTIONS)

bench-papers: $(VENV)/.dev  ## the figures of the papers, simulated from published numbers
	$(BIN)/python -m benchmarks.papers --json benchmarks/results/papers.json

device: $(VENV)/.dev  ## the library on a real accelerator: one GPU as four logical devices; skipped where TensorFlow sees none
	$(BIN)/python -m benchmarks.device --json benchmarks/results/device.json \
		--record-trace benchmarks/results/device_trace.json $(OPTIONS)

# In both, a file that is there already is gone on with; OPTIONS=--any-program keeps its cells also where another version of
# the program, another processor or another kernel has measured them, as it is with the training*.json of the documents.
bench-quick: $(VENV)/.dev  ## training steps against the peers' on hosts with shaped links, some minutes; needs root
	$(BIN)/python -m benchmarks.training --quick --results benchmarks/results/$(NAME)_quick.json --plots benchmarks/results/$(NAME)_quick $(OPTIONS)

bench: $(VENV)/.dev  ## all of them, some hours, resumable; needs root; documents show those whose NAME begins with training
	$(BIN)/python -m benchmarks.training --results benchmarks/results/$(NAME).json --plots benchmarks/results/$(NAME) $(OPTIONS)

bench-emulated: $(VENV)/.dev  ## the same with accelerators that are emulated, some hours, resumable; needs root
	$(BIN)/python -m benchmarks.training --emulated --results benchmarks/results/emulated_$(NAME).json $(OPTIONS)

horovod:  ## build Horovod in an environment of its own, for these benchmarks; needs Python up to 3.11 and a C++ compiler
	scripts/horovod.sh .venv-horovod

clean:
	rm -rf $(VENV) .venv-horovod build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/.demo: pyproject.toml scripts/environment.sh
	scripts/environment.sh $(VENV) .
	touch $@

$(VENV)/.dev: pyproject.toml scripts/environment.sh
	scripts/environment.sh $(VENV) '.[dev]'
	touch $@

$(VENV)/.browser: pyproject.toml scripts/environment.sh
	scripts/environment.sh $(VENV) '.[dev,browser]'
	touch $@
