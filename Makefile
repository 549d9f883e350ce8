# Two commands matter: `make demo` shows what refocal does, `make test` checks the code.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# for every pip, including those that tests start
CONSTRAINTS := constraints.txt
export PIP_CONSTRAINT = $(abspath $(CONSTRAINTS))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test quick suite test-thorough test-oldest test-newest test-hostile test-jax test-peers test-integrations \
	test-docs test-slow test-gpu mutants lint types docs dist bench bench-calibrators bench-comparison bench-arena \
	have-data figures clean

demo: $(VENV)/.base
	$(BIN)/refocal demo --report refocal-demo.html --force

# Two workers with one thread each: more threads would wait for each other. One worker runs all tests of a file, so
# that what they share (an installed wheel, a Ray cluster, a browser) is made once.
quick test-thorough test-integrations test-docs test-slow docs: export OMP_NUM_THREADS = 1
# Keep what Python compiles, for the many processes that tests start.
quick test-thorough test-slow: export PYTHONDONTWRITEBYTECODE =

# tests of GPU kernels, which Triton's interpreter runs here
INTERPRETED := $(addprefix tests/losses/test_,kernels.py kernel_layouts.py kernel_dispatch.py sigmoid_kernel.py \
	like_cross_entropy.py linear_focal.py linear_machinery.py linear_posterior.py) \
	lab/tests/train/test_convolution.py lab/tests/train/test_normalization.py lab/tests/train/test_depthwise.py

test: lint types quick

# At the end of the last part, the tests that no part ran are listed.
PARTS := .pytest_cache/parts.json
BY_FILE := -n 2 --dist loadfile --parts $(PARTS)
QUICK := -m "not slow and not thorough"
quick: $(VENV)/.test
	rm -f $(PARTS)
	$(BIN)/python -m pytest $(BY_FILE) $(QUICK)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 --parts $(PARTS) $(QUICK) $(INTERPRETED)

# Tests of five seconds or more: simulations, clusters, whole commands.
test-thorough: $(VENV)/.test
	$(BIN)/python -m pytest $(BY_FILE) -m "thorough and not slow"

suite: quick test-thorough

test-hostile: $(VENV)/.test
	$(BIN)/python tools/hostile.py one-cpu $(MAKE) suite
	$(BIN)/python tools/hostile.py load $(MAKE) suite

# Other versions, each set in its own environment. The lowest that the pyproject.toml files promise, on the oldest Python:
OLDEST_PYTHON := python$(shell sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)
OLDEST := .venv-oldest/constraints.txt
test-oldest: $(OLDEST)
	$(MAKE) suite VENV=.venv-oldest CONSTRAINTS=$(OLDEST) PYTHON=$(OLDEST_PYTHON) TEST_EXTRAS=test

$(OLDEST): pyproject.toml lab/pyproject.toml tools/oldest.py
	mkdir -p $(@D)
	$(OLDEST_PYTHON) tools/oldest.py pyproject.toml lab/pyproject.toml > $@.new
	mv $@.new $@

# The newest versions there are today:
test-newest:
	rm -f .venv-newest/.base
	PIP_UPGRADE=1 PIP_UPGRADE_STRATEGY=eager $(MAKE) suite VENV=.venv-newest CONSTRAINTS=

# Those of constraints.txt on another Python: `make test-3.12`
test-3.%:
	@python3.$* -c '' 2>/dev/null || { echo 'python3.$* was not found: the suite did not run on it'; exit 1; }
	$(MAKE) suite VENV=.venv-3.$* PYTHON=python3.$*

test-jax: $(VENV)/.jax
	$(BIN)/python -m pytest -n 2 --dist loadfile --backend jax tests/maps tests/stats tests/calibrators tests/metrics/test_inputs.py

# Other packages, without their dependencies: losses and metrics to compare with, and what draws them.
DRAWING := contourpy cycler fonttools kiwisolver matplotlib pillow pyparsing python-dateutil
PEERS := absl-py fvcore h5py keras kornia kornia_rs lightgbm ml_dtypes monai namex optree pytorch_toolbelt \
	segmentation_models_pytorch timm torch_uncertainty torchvision \
	deprecation MAPIE pandas relplot seaborn tzdata venn-abers $(DRAWING)
BENCH := MAPIE netcal tqdm uncertainty-calibration $(DRAWING)

test-peers: $(VENV)/.test
	$(PIP) --no-deps $(PEERS)
	$(BIN)/python -m pytest tests/peers

# The packages that refocal plugs into, with their dependencies, and the pages that use them:
test-integrations: $(VENV)/.integrations
	$(BIN)/python -m pytest tests/integrations src/refocal/integrations src/refocal/boosting tests/test_jax_losses.py \
		src/refocal/jax tests/report/test_tracking.py tests/test_pages.py tests/test_page_sketches.py

# The documentation site, into build/site, all of it anew. A warning is an error.
docs: $(VENV)/.docs
	rm -rf build/site build/doctrees docs/examples docs/reference/api
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -c docs -d build/doctrees . build/site
	@echo 'open build/site/index.html'

# Builds it by itself, and opens every page in a browser:
test-docs: $(VENV)/.docs
	$(BIN)/python -m pytest tests/test_site.py

# Both distributions, into dist/, and what a release still needs. A release has a tag, and says where it is published:
# `make dist TAG=v0.1.0 ADDRESS=https://... SITE=https://...`, the addresses of the repository and of its documentation.
RELEASE := build/release
dist: $(VENV)/.test
	$(BIN)/python tools/release_gaps.py "$(TAG)" "$(ADDRESS)"
	rm -rf dist $(RELEASE)
	$(BIN)/python tools/release_tree.py $(RELEASE) $(if $(ADDRESS)$(SITE),$(ADDRESS) $(SITE) $(or $(TAG),main))
	$(BIN)/python -m build --outdir dist $(RELEASE)
	$(BIN)/python -m build --outdir dist $(RELEASE)/lab
	$(BIN)/python -m twine check --strict dist/*

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

# In the environment of $(PYTHON), whose PyTorch must find a GPU: `make test-gpu PYTHON=path/to/python`.
ON_GPU := $(addprefix tests/,calibrators curvature losses) lab/tests/train
test-gpu:
	$(PYTHON) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "PyTorch sees no GPU")'
	PYTHONPATH="$(CURDIR)/src:$(CURDIR)/lab/src$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m pytest -m "(gpu or kernels) and not slow" $(ON_GPU)

# Plant small faults in the formulas, and see whether a test notices each: an hour or two. One thread: processes fork.
MUTANTS := --sample 1200 --seed 0
mutants: export OMP_NUM_THREADS = 1
mutants: $(VENV)/.test
	$(PIP) coverage
	$(BIN)/python tools/mutate.py survey
	$(BIN)/python tools/mutate.py run $(MUTANTS)
	$(BIN)/python tools/mutate.py run $(MUTANTS) --survivors --budget 60
	$(BIN)/python tools/mutate.py report --out benchmarks/results/mutation.md

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

# Simulations take hours on one core: `make bench JOBS=16`. With DATA=folder, as for bench-arena, tests of calibration
# also run on real networks.
JOBS := 1
bench: $(VENV)/.test
	$(BIN)/python benchmarks/posterior.py --out benchmarks/results/posterior.md
	$(BIN)/python benchmarks/predictions.py --out benchmarks/results/predictions.md
	$(BIN)/python benchmarks/cli.py --out benchmarks/results/cli.md
	$(BIN)/python benchmarks/imports.py --out benchmarks/results/imports.md
	$(PIP) pandas
	$(BIN)/python benchmarks/scale.py --out benchmarks/results/scale.md
	$(PIP) --editable '.[boosting]'
	$(BIN)/python benchmarks/boosting.py --out benchmarks/results/boosting.md
	$(PIP) --no-deps PyHessian
	$(BIN)/python benchmarks/curvature.py --out benchmarks/results/curvature.md
	$(PIP) --no-deps $(BENCH)
	$(BIN)/python benchmarks/metrics.py --stream 100000000 --out benchmarks/results/metrics.md
	$(BIN)/python benchmarks/intervals.py --jobs $(JOBS) --out benchmarks/results/intervals.md
	$(BIN)/python benchmarks/paired_tests.py --jobs $(JOBS) --out benchmarks/results/paired_tests.md
	$(BIN)/python benchmarks/refinement_intervals.py --jobs $(JOBS) --out benchmarks/results/refinement_intervals.md
	$(BIN)/python benchmarks/more_intervals.py --jobs $(JOBS) --out benchmarks/results/more_intervals.md
	$(BIN)/python benchmarks/calibration_tests.py --jobs $(JOBS) $(if $(DATA),--data $(DATA)/logits) \
		--out benchmarks/results/calibration_tests.md
	$(BIN)/python benchmarks/joint_test_bound.py --out benchmarks/results/joint_test_bound.md
	$(BIN)/python benchmarks/choice_p_values.py --out benchmarks/results/choice_p_values.md
	$(if $(DATA),$(BIN)/python benchmarks/histogram_methods.py $(DATA)/logits --out benchmarks/results/histogram_methods.md)
	$(BIN)/python benchmarks/token_intervals.py --out benchmarks/results/token_intervals.md
	$(BIN)/python benchmarks/detection_intervals.py --out benchmarks/results/detection_intervals.md
	$(BIN)/python benchmarks/segmentation_intervals.py --out benchmarks/results/segmentation_intervals.md
	$(BIN)/python benchmarks/conformal.py --jobs $(JOBS) --out benchmarks/results/conformal.md
	$(BIN)/python benchmarks/label_smoothing.py --zoo lab/zoo --jobs $(JOBS) --out benchmarks/results/label_smoothing.md

# Calibrators of other packages, without their dependencies.
CALIBRATOR_PEERS := absl-py llvmlite netcal numba opt_einsum pandas probmetrics pyro-ppl python-dateutil \
	pytorch-minimize pytz PyYAML tensorboard torch_uncertainty tqdm

bench-calibrators: $(VENV)/.test
	$(PIP) --no-deps $(CALIBRATOR_PEERS)
	$(BIN)/python benchmarks/calibrators.py --out benchmarks/results/calibrators.md

# The table of other packages in README.md.
bench-comparison: $(VENV)/.test
	$(PIP) --no-deps $(CALIBRATOR_PEERS) $(BENCH)
	$(BIN)/python benchmarks/comparison.py --out benchmarks/results/comparison.md

# Calibrators on hundreds of experiments: `make bench-arena DATA=folder`, which has logits/ and tabular/.
ARENA := build/arena
bench-arena: have-data $(VENV)/.test
	$(PIP) --no-deps $(CALIBRATOR_PEERS)
	$(BIN)/python benchmarks/calibrator_arena.py --data $(DATA) --cache $(ARENA) \
		--save $(ARENA)/raw.json --out benchmarks/results/calibrator_arena.md

have-data:
	@test -d "$(DATA)/logits" || { echo 'DATA must name the folder that has logits/ and tabular/, got "$(DATA)"'; exit 1; }

# All but the picture of the report page, which needs a browser.
FIGURES := $(patsubst %.svg,%,$(wildcard docs/figures/*.svg))
figures: $(VENV)/.test
	for figure in $(FIGURES); do $(BIN)/python $$figure.py $$figure.svg || exit 1; done

clean:
	rm -rf $(VENV) .venv-* build dist docs/examples docs/reference/api .mypy_cache .pytest_cache .ruff_cache .hypothesis

# curvlinops and what it imports. Its full dependencies include a torchvision that may not fit this PyTorch.
CURVATURE := backpack-for-pytorch curvlinops-for-pytorch einconv einops linear_operator opt_einsum tqdm unfoldNd

# Each stamp marks a state of the environment: .base has the library alone, .test has the lab and the tests too.
$(VENV)/.base: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

# The oldest versions do without `release`, which needs newer ones.
TEST_EXTRAS := test,release
$(VENV)/.test: $(VENV)/.base lab/pyproject.toml
	$(PIP) --editable '.[torch,onnx,arrow,ray,plot,$(TEST_EXTRAS)]' --editable lab
	$(PIP) --no-deps $(CURVATURE)
	touch $@

$(VENV)/.jax: $(VENV)/.test
	$(PIP) --editable '.[jax]'
	touch $@

$(VENV)/.integrations: $(VENV)/.jax
	$(PIP) --editable '.[boosting,lightning,transformers]' optax mlflow-skinny pycocotools wandb
	touch $@

# the reference names what plugs into other packages, so these have to be there
$(VENV)/.docs: $(VENV)/.integrations
	$(PIP) --editable '.[docs]'
	touch $@
