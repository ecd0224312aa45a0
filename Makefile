# Two commands set everything up on a machine with Python, git and g++:
#   make demo    create .venv, install, train on handwritten digits
#   make test    create .venv, install, run the tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := demo
.PHONY: demo test test-gpu test-sweep test-hazards test-operators test-remedies test-torch check judge rules docs test-docs \
	gallery bench wheels release clean

# A new pip, by that of $(PYTHON), takes 2 s, and installs faster than that of ensurepip, which takes 6.
# Where $(PYTHON) has no pip, or one older than 22.3, ensurepip's is used. With flit_core beside it, pip
# builds this project without another environment for that.
PIP_OPTIONS := --disable-pip-version-check --quiet --no-compile --constraint constraints.txt

$(VENV)/.made:
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python install $(PIP_OPTIONS) pip flit_core || \
		{ $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install $(PIP_OPTIONS) flit_core; }
	@touch $@

# Python compiles the modules that a program imports, and keeps them: compiling all that is installed
# would take half a minute.
export PYTHONDONTWRITEBYTECODE =

# One stamp a set of extras, so that nothing is installed twice.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/.made
	$(BIN)/python -m pip install $(PIP_OPTIONS) --no-build-isolation --editable '.[$*]'
	@touch $@

demo: $(VENV)/.installed-examples
	$(BIN)/anyrig devices
	$(BIN)/anyrig run examples/digits.py

# The virtual GPUs are built first. Two files of tests at a time, in their order: the last ones take
# the longest.
test: $(VENV)/.installed-test
	$(BIN)/anyrig virtual build
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# On this machine's own GPUs, which it must have; see tests/run_on_gpus.py. GPU_PROCESSES files of
# tests run at a time, each with a CUDA context of half a GB on the GPU. GPU_TESTS selects files.
GPU_PROCESSES ?= 4
GPU_SECONDS   ?= 300
GPU_RESULTS   ?= build/gpu

test-gpu: $(VENV)/.installed-test
	$(BIN)/python tests/run_on_gpus.py --processes $(GPU_PROCESSES) --seconds $(GPU_SECONDS) \
		--results $(GPU_RESULTS) $(GPU_TESTS)

# More combinations of what `make test` tries.
test-sweep: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m sweep --numprocesses 2 --dist loadfile

# Each test, what it forks and each test of an inner pytest, within `watch_hazards`; see
# tests/watched_tests.py. Not watched: processes that a test starts anew, what torch.compile
# traces, and writes to saved memory in processes that install virtual GPUs after the watch began.
test-hazards: $(VENV)/.installed-test
	$(BIN)/python -m pytest --watch-hazards --numprocesses 2 --dist loadfile --no-loadscope-reorder

# OPERATORS=--all runs every dtype and form; see tests/operators/sweep.py.
test-operators: $(VENV)/.installed-test
	$(BIN)/python tests/operators/sweep.py $(OPERATORS)

# Every remedy of `anyrig rehearse --remedies`, against the same remedy applied by hand.
test-remedies: $(VENV)/.installed-test
	PYTHONPATH=tests $(BIN)/python tests/rehearsal/remedied_programs.py

# The tests with another version of PyTorch: make test-torch TORCH=2.14.1, or TORCH=newest for the
# newest release that pip finds. Each version has a virtual environment of its own below TORCH_VENVS.
# PyPI's wheels for Linux bring CUDA's libraries, 3 GB, and need no GPU. TESTS selects the tests.
TORCH_VENVS := .
TORCH_VENV   = $(TORCH_VENVS)/.venv-torch-$(TORCH)
TORCH_WANTED = torch$(if $(filter newest,$(TORCH)),,==$(TORCH))
TESTS       := tests

test-torch:
	@test -n "$(TORCH)" || { echo "name a version of PyTorch: make test-torch TORCH=2.14.1"; exit 2; }
	test -x $(TORCH_VENV)/bin/python || $(PYTHON) -m venv $(TORCH_VENV)
	grep -v '^torch==' constraints.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile --upgrade \
		--constraint $(TORCH_VENV)/constraints.txt '$(TORCH_WANTED)' --editable '.[test]'
	$(TORCH_VENV)/bin/anyrig virtual build
	$(TORCH_VENV)/bin/python -m pytest $(TESTS) --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.installed-check $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python -m pytest tests/house

# The errors of predicted times, against the committed ones; JUDGE=quick takes half a minute, and
# JUDGE=write accepts new ones.
JUDGE ?= run

judge: $(VENV)/.installed-test
	$(BIN)/python benchmarks/judge.py $(JUDGE)

# The pages of the rules of `anyrig check`, in docs/rules, and docs/findings.md.
rules: $(VENV)/.installed-test
	$(BIN)/python tests/migration/write_rule_pages.py
	$(BIN)/python tests/house/write_findings_page.py

# The site, in build/site: docs/site has its tools. Its pages open from the disk.
docs: $(VENV)/.installed-docs build/gallery/index.html
	$(BIN)/python docs/site/build_site.py

# Every page in Chromium, at two widths, light and dark; and what the first pages say commands print.
test-docs: docs $(VENV)/.installed-test
	$(BIN)/python -m pytest -m sweep tests/site tests/house

# Reports of real scripts, in build/gallery.
gallery build/gallery/index.html: | $(VENV)/.installed-docs
	$(BIN)/anyrig virtual build
	$(BIN)/python docs/site/write_gallery.py

bench: $(VENV)/.installed-test
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit; done

# The wheel of anyrig, and that of the virtual GPUs' libraries for this Python and each PyTorch:
# a download of 0.5 GB and two minutes of compiling each. ANYRIG_VIRTUAL_TORCH='2.13.0 2.15.0'
# compiles for these alone. What was compiled stays in build/anyrig.
wheels: $(VENV)/.installed-release
	$(BIN)/python -m build --wheel --outdir dist .
	$(BIN)/python -m build --wheel --outdir dist packaging/anyrig-virtual

# All that can be known before a release is published: the source distribution, the wheel that is
# built from it, the wheel for this Python, their metadata, the configuration for the other Pythons,
# and what a user does with them in a new environment. Nothing is published.
release: $(VENV)/.installed-release
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --wheel --outdir dist packaging/anyrig-virtual
	$(BIN)/twine check --strict dist/*
	$(BIN)/cibuildwheel --platform linux --print-build-identifiers packaging/anyrig-virtual
	$(BIN)/python packaging/check_release.py dist

clean:
	rm -rf $(VENV) .venv-torch-* .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
