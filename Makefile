# Thin targets over CMake. Each installs what it needs first (tools/setup.sh says what it does) and then builds.
#   make quickstart [SEED=7]   set up, build (without GPU kernels where no GPU is), and fine-tune a small model in two acts
#   make build [CUDA=OFF]      build/hone; CUDA=ON or OFF instead of where a toolkit is; UNITY=OFF for whoever edits
#   make test                  all tests
#   make fuzz                  readers of foreign files on damaged input, under AddressSanitizer and UndefinedBehaviorSanitizer
#   make bench                 time of every op, as hone bench ops prints it
#   make format | lint         clang-format | clang-format check and clang-tidy
#   make wheel                 dist/hone-VERSION-….whl, which pip installs, for all GPUs from compute capability 8.0 on
#   make dist                  the same program as an archive with install.sh
#   make op OP=rms_norm        tests and benchmark of one op
#   make new-op NAME=rms_norm  a folder for a new op, whose tests fail until it is filled in
#   make tsan                  tests of threads, ranks and the kernels that share work, under ThreadSanitizer
#   make levels                ranks, reference cases and trajectories at the instruction sets below the CPU's best one
#   make amx                   tests of the kernels for AMX, with tiles in memory on a CPU without them
#   make arm                   compiles rooms core to ops for 64-bit Arm
#   make real [REAL=--short]   a released model and real text beside transformers and PEFT (PYTHON=venv/bin/python: a Python with both)
MAKEFLAGS += --no-print-directory
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
SEED ?= 42
JOBS ?= $(shell nproc)
TEST_JOBS ?= 2
CUDA ?= AUTO
WERROR ?= OFF
# ON: GPU kernels that compile in a third of the time and are slow, for a machine without a GPU that checks them.
QUICK_CUDA ?= OFF
# Compute capabilities to compile for, as CMake's HONE_CUDA_ARCHITECTURES; empty: this machine's.
ARCHITECTURES ?=
BUILD ?= build
# OFF: a changed source is compiled alone, which whoever edits wants; ON: a first build takes a third of the time.
UNITY ?=
# A release runs on GPUs of compute capability 8.0 and later: machine code, and PTX for those to come.
RELEASE_ARCHITECTURES ?= 80;90a;100;120;compute_80
CONFIGURE = cmake -S . -B $(BUILD) -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DHONE_CUDA=$(CUDA) -DHONE_WERROR=$(WERROR) \
  -DHONE_QUICK_CUDA=$(QUICK_CUDA) $(if $(UNITY),-DHONE_UNITY=$(UNITY)) $(if $(ARCHITECTURES),"-DHONE_CUDA_ARCHITECTURES=$(ARCHITECTURES)")
SOURCES = $(shell find src tests -name '*.h' -o -name '*.cpp' -o -name '*.cu')

FUZZERS = $(patsubst tests/fuzz/%_fuzz.cpp,hone_fuzz_%,$(wildcard tests/fuzz/*_fuzz.cpp))

.PHONY: setup setup-tests build-tests amx-tests build quickstart test levels fuzz tsan amx arm real bench format lint release dist wheel op new-op clean

setup:
	@tools/setup.sh build

setup-tests: setup
	@tools/setup.sh test

build: setup
	@$(CONFIGURE) -DHONE_TESTS=OFF | grep 'GPU kernels'
	@cmake --build $(BUILD) --target hone hone_shared -j $(JOBS)
	@echo "built $(BUILD)/hone"

# Where no GPU is, GPU kernels would only make the first result later.
GPU = $(wildcard /dev/nvidiactl /dev/dxg)
quickstart:
	@$(if $(GPU),,echo 'no GPU is here: the quickstart builds without GPU kernels (make build includes them)')
	@$(MAKE) build CUDA=$(if $(GPU),$(CUDA),OFF)
	@$(BUILD)/hone quickstart --output quickstart --seed $(SEED)

build-tests: setup-tests
	@$(CONFIGURE) -DHONE_TESTS=ON >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

# Prints the ten slowest tests at the end.
test: build-tests
	@cd $(BUILD) && ctest --output-on-failure -j $(TEST_JOBS) | tee ctest.log
	@grep -E ' +[0-9.]+ sec$$' $(BUILD)/ctest.log | sed -E 's/^.*: +([^ ]+) \.+.* ([0-9.]+) sec$$/\2 s  \1/' | sort -rn | sed -n 1,10p

# Other CPUs run other kernels (HONE_INSTRUCTION_SET), with other rounding and other ties.
LEVEL_TESTS = ranks golden experts_on_host trainer_ranks
levels: setup-tests
	@$(CONFIGURE) -DHONE_TESTS=ON >/dev/null
	@cmake --build $(BUILD) --target hone $(LEVEL_TESTS:%=hone_%_test) -j $(JOBS)
	@TEST_JOBS=$(TEST_JOBS) tools/levels.sh $(BUILD)

fuzz: setup-tests
	@cmake -S . -B $(BUILD)-fuzz -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DHONE_TESTS=ON -DHONE_SANITIZE=ON -DHONE_ONLY_READERS=ON -DHONE_CUDA=OFF -DHONE_WERROR=$(WERROR) >/dev/null
	@cmake --build $(BUILD)-fuzz --target $(FUZZERS) -j $(JOBS)
	@cd $(BUILD)-fuzz && ctest --output-on-failure -j $(TEST_JOBS) -R '^fuzz'

# Of the tests, those that take seconds under ThreadSanitizer.
TSAN_OPS = gemm;moe_experts;attention;linear;transfer
TSAN_MOE = AFrozenBase* RouterWeights* Weights* ExpertsWithout* Results* Recomputation* Dropout*
TSAN_TESTS = Transfer.* AllIsas/Gemm.* Linear.* LinearBounds.NoTokens* MoePermutation.* CachedAttention.* PackedAttention.Documents* \
  PackedAttention.ADocument* PackedAttention.NoTokens* TileProducts.DoNotDepend* $(addprefix MoeExperts.,$(TSAN_MOE))
tsan: setup-tests
	@cmake -S . -B $(BUILD)-tsan -G "Unix Makefiles" -DHONE_TESTS=ON "-DHONE_OPS=$(TSAN_OPS)" -DHONE_SANITIZE=thread \
	  -DHONE_CUDA=OFF -DHONE_WERROR=$(WERROR) >/dev/null
	@cmake --build $(BUILD)-tsan --target hone_core_test hone_dist_test hone_few_ops_test -j $(JOBS)
	@$(BUILD)-tsan/hone_core_test --gtest_brief=1
	@$(BUILD)-tsan/hone_dist_test --gtest_brief=1 --gtest_filter='-*MessagesOfAllSizes*'
	@$(BUILD)-tsan/hone_few_ops_test --gtest_brief=1 --gtest_filter="$$(echo '$(TSAN_TESTS)' | tr -s ' ' :)"

# Kernels for AMX elsewhere than on a CPU with AMX. The tiles are in memory (src/core/cpu/amx_emulation.h), the rest is AVX-512.
AMX_OPS = gemm;row_math;attention;gated_delta_rule;linear;linear_cross_entropy;moe_experts
amx: setup-tests
	@if grep -qw avx512_bf16 /proc/cpuinfo && grep -qw avx512vbmi /proc/cpuinfo; then $(MAKE) amx-tests; \
	else echo 'This CPU has no AVX-512 BF16 and VBMI: the tests of kernels for AMX are skipped.'; fi
amx-tests:
	@cmake -S . -B $(BUILD)-amx -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DHONE_TESTS=ON "-DHONE_OPS=$(AMX_OPS)" \
	  -DHONE_EMULATE_AMX=ON -DHONE_CUDA=OFF -DHONE_WERROR=$(WERROR) >/dev/null
	@cmake --build $(BUILD)-amx --target hone_few_ops_test -j $(JOBS)
	@$(BUILD)-amx/hone_few_ops_test --gtest_brief=1

# Objects and archives only: nothing is linked, and libraries for Arm are not needed.
arm: setup
	@tools/setup.sh arm
	@cmake -S . -B $(BUILD)-arm -G "Unix Makefiles" -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DCMAKE_BUILD_TYPE=Debug \
	  -DHONE_TESTS=OFF -DHONE_CUDA=OFF -DHONE_PCH=OFF -DHONE_WERROR=$(WERROR) >/dev/null
	@cmake --build $(BUILD)-arm --target hone_ops -j $(JOBS)
	@echo "compiled rooms core to ops for aarch64"

# Skipped with a line by a Python without the packages. Results are in real/, and rows that held are not run again.
PYTHON ?= python3
real: build
	@$(PYTHON) tools/real_proof.py real --hone $(BUILD)/hone $(REAL)

bench: build
	@$(BUILD)/hone bench ops

# An existing build keeps its choice of GPU kernels. The tests of other ops are not built.
BENCHES = $(shell find src/ops -path '*/$(OP)/*_bench.cpp')
op: setup-tests
	@test -n "$(OP)" || { echo "say which: make op OP=rms_norm"; exit 2; }
	@cmake -S . -B $(BUILD) -G "Unix Makefiles" -DHONE_TESTS=ON -DHONE_OPS=$(OP) \
	  $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DHONE_CUDA=$(if $(GPU),$(CUDA),OFF)) >/dev/null
	@cmake --build $(BUILD) --target hone_few_ops_test $(if $(BENCHES),hone) -j $(JOBS)
	@$(BUILD)/hone_few_ops_test
	@$(if $(BENCHES),$(BUILD)/hone bench ops --op $(OP))

new-op:
	@tools/new_op.sh "$(NAME)"

format:
	@tools/setup.sh lint
	@clang-format -i $(SOURCES)

lint:
	@tools/setup.sh lint
	@clang-format --dry-run --Werror $(SOURCES)
	@tools/lint.sh $(BUILD)-lint

release: setup
	@tools/setup.sh release
	@cmake -S . -B $(BUILD)-dist -G "Unix Makefiles" -DCMAKE_BUILD_TYPE=Release -DHONE_CUDA=$(CUDA) -DHONE_TESTS=OFF -DHONE_STATIC=ON "-DHONE_CUDA_ARCHITECTURES=$(RELEASE_ARCHITECTURES)" | grep 'GPU kernels'
	@cmake --build $(BUILD)-dist --target hone hone_shared -j $(JOBS)

dist: release
	@tools/dist.sh $(BUILD)-dist

wheel: release
	@tools/wheel.py $(BUILD)-dist

clean:
	rm -rf $(BUILD) $(BUILD)-dist dist
