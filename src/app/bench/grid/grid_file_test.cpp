#include "app/bench/grid/grid_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "app/bench/grid/grid_testing.h"
#include "core/base/error.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void expect_refused(const std::string& text, const std::string& what, const std::string& where,
                    const std::string& fix = "") {
  try {
    grid_of(text);
    ADD_FAILURE() << "not refused:\n" << text;
  } catch (const UserError& error) {
    EXPECT_THAT(error.message(), HasSubstr(what)) << text;
    EXPECT_EQ(error.where(), where) << text;
    EXPECT_THAT(error.fix(), HasSubstr(fix)) << text;
  }
}

TEST(GridFile, EveryCombinationIsAScenarioTheLastAxisFastest) {
  const GridFile grid = grid_of(R"(
defaults: {steps: 5, mode: lora}
matrix:
  model: [mixtral-8x7b, qwen3-8b]
  batch: [1, 4]
)");
  EXPECT_THAT(commands_of(grid),
              ElementsAre("hone bench step --model mixtral-8x7b --mode lora --batch 1 --steps 5 --json -",
                          "hone bench step --model mixtral-8x7b --mode lora --batch 4 --steps 5 --json -",
                          "hone bench step --model qwen3-8b --mode lora --batch 1 --steps 5 --json -",
                          "hone bench step --model qwen3-8b --mode lora --batch 4 --steps 5 --json -"));
  EXPECT_THAT(grid.names, ElementsAre("steps", "mode", "model", "batch"));
  EXPECT_EQ(grid.limit_s, 1800);
}

TEST(GridFile, SeveralRanksAreLaunched) {
  const GridFile grid = grid_of("matrix: {model: qwen3-8b, ranks: [1, 2], device: cpu}");
  EXPECT_THAT(commands_of(grid),
              ElementsAre("hone bench step --model qwen3-8b --device cpu --json -",
                          "hone launch -n 2 --device cpu -- bench step --model qwen3-8b --device cpu --json -"));
}

TEST(GridFile, SettingsWithoutEffectMakeNoScenariosOfTheirOwn) {
  const GridFile grid = grid_of(R"(
matrix:
  model: [qwen3-8b]
  mode: [full, lora, lora-all]
  lora_r: [8, 16]
  expert_lora: [shared, split]
  zero_stage: [1, 3]
)");
  EXPECT_THAT(commands_of(grid), SizeIs(1 + 2 + 4)) << "the stage of one rank, the rank of no adapter";
  EXPECT_EQ(grid.scenarios.front().settings.find("lora_r"), nullptr);
}

TEST(GridFile, SwitchesListsAndNullAreWrittenAsTheCommandLineHasThem) {
  const GridFile grid = grid_of(R"(
defaults: {model: ./my model, cpu-offload: [optimizer, params], optimizer_in_backward: yes, seed: -1}
matrix:
  cpu_offload: [null, [], [experts], "optimizer,params"]
include:
  - {optimizer_in_backward: false, seed: null}
)");
  const std::string model = "hone bench step --model './my model'";
  EXPECT_THAT(commands_of(grid),
              ElementsAre(model + " --optimizer-in-backward --seed=-1 --json -",
                          model + " --optimizer-in-backward --cpu-offload experts --seed=-1 --json -",
                          model + " --optimizer-in-backward --cpu-offload optimizer,params --seed=-1 --json -",
                          model + " --cpu-offload optimizer,params --json -"));
}

TEST(GridFile, NamedGroupsOfSettingsAreAnAxis) {
  const GridFile grid = grid_of(R"(
defaults: {model: qwen3-8b}
matrix:
  ranks: [1, 2]
  setup:
    plain: {}
    sharded: {zero_stage: 3, recompute: everything}
exclude: [{setup: sharded, ranks: 1}]
)");
  EXPECT_THAT(
      commands_of(grid),
      ElementsAre("hone bench step --model qwen3-8b --json -",
                  "hone launch -n 2 -- bench step --model qwen3-8b --json -",
                  "hone launch -n 2 -- bench step --model qwen3-8b --recompute everything --zero-stage 3 --json -"));
  EXPECT_EQ(*grid.scenarios.back().settings.find("setup"), "sharded");
  EXPECT_THAT(grid.notes, IsEmpty());
}

TEST(GridFile, ExclusionsCompareWithWhatCounts) {
  const GridFile grid = grid_of(R"(
matrix:
  model: [qwen3-8b, mixtral-8x7b]
  batch: [null, 1, 2]
exclude:
  - {model: qwen3-8b, batch: [2, 4]}      # 4 is what bench step takes
  - {mode: lora}
include:
  - {model: qwen3-8b, batch: 2}           # stays: nothing is excluded from include
  - {model: mixtral-8x7b, batch: 1}       # is there already
)");
  EXPECT_THAT(commands_of(grid), ElementsAre("hone bench step --model qwen3-8b --batch 1 --json -",
                                             "hone bench step --model mixtral-8x7b --json -",
                                             "hone bench step --model mixtral-8x7b --batch 1 --json -",
                                             "hone bench step --model mixtral-8x7b --batch 2 --json -",
                                             "hone bench step --model qwen3-8b --batch 2 --json -"));
  EXPECT_THAT(grid.notes, ElementsAre("grid.yaml:7: this excludes nothing"));
  EXPECT_EQ(*grid.scenarios[1].settings.find("batch"), "4") << "in tables";
}

TEST(GridFile, AGlobalBatchIsSharedOutAmongTheRanks) {
  const GridFile grid = grid_of("matrix: {model: qwen3-8b, ranks: [1, 2, 4], global_batch: 16}");
  EXPECT_THAT(commands_of(grid),
              ElementsAre("hone bench step --model qwen3-8b --micro-batches 4 --json -",
                          "hone launch -n 2 -- bench step --model qwen3-8b --micro-batches 2 --json -",
                          "hone launch -n 4 -- bench step --model qwen3-8b --micro-batches 1 --json -"));
  expect_refused("matrix: {model: m, ranks: [1, 3], global_batch: 16}",
                 "global_batch 16 is not a multiple of batch 4 times ranks 3", "grid.yaml:1", "exclude");
  expect_refused("include: [{model: m, global_batch: 8, micro_batches: 2}]", "both global_batch and micro_batches",
                 "grid.yaml:1");
}

TEST(GridFile, SaysWhatIsWrongWhereAndWhatHelps) {
  expect_refused("matrix:\n  modle: [a]", "Did you mean 'mode', 'model'?", "grid.yaml:2", "options of hone bench step");
  expect_refused("matrx: {model: [a]}", "Did you mean 'matrix'?", "grid.yaml:1", "the sections are");
  expect_refused("model: a", "no section 'model'", "grid.yaml:1", "under defaults or matrix");
  expect_refused("{}", "no scenarios", "grid.yaml:1", "under matrix");
  expect_refused("matrix: {batch: [1]}", "has no model", "grid.yaml:1", "state model");
  expect_refused("matrix: {model: []}", "model has no values", "grid.yaml:1");
  expect_refused("matrix: {model: {a: {}}}", "expected a list of values", "grid.yaml:1", "such as setup");
  expect_refused("matrix: [model]", "not a mapping", "grid.yaml:1");
  expect_refused("matrix: {model: [a], model: [b]}", "model is stated twice", "grid.yaml:1");
  expect_refused("matrix:\n  batch: [1]\n  setup: {big: {batch: 8}}", "stated by two axes: batch and setup",
                 "grid.yaml:3");
  expect_refused("defaults:\n  mode: [full, lora]", "expected one value", "grid.yaml:2", "under matrix");
  expect_refused("include: [{model: a, ranks: 0}]", "a whole number of at least 1", "grid.yaml:1");
  expect_refused("include: [{model: a, ranks: two}]", "a whole number of at least 1", "grid.yaml:1");
  expect_refused("include: [{model: a, optimizer_in_backward: maybe}]", "true or false", "grid.yaml:1");
  expect_refused("include: [{model: a, json: x}]", "no key 'json'", "grid.yaml:1");
  expect_refused("include: {model: a}", "not a list", "grid.yaml:1");
  expect_refused("matrix: {model: [a]}\nexclude: [{}]", "exclude everything", "grid.yaml:2");
  expect_refused("matrix: {model: [a]}\nexclude: [{rank: 1}]", "Did you mean 'ranks'", "grid.yaml:2");
  expect_refused("limit_s: soon", "seconds above 0", "grid.yaml:1");
  expect_refused("memory: [plan, devise]", "Did you mean 'device'?", "grid.yaml:1", "plan, device and host");
  std::string many = "matrix:\n  model: [a]\n";
  for (const char* key : {"batch", "seq", "steps", "warmup"}) {
    many += std::string("  ") + key + ": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]\n";
  }
  expect_refused(many, "more than 10000 combinations", "grid.yaml:6", "several files");
}

TEST(GridFile, OnlyKeepsScenariosWithOneOfTheValues) {
  const auto kept = [](const std::vector<std::string>& only) {
    GridFile grid = grid_of("matrix: {model: [a, b], batch: [1, 2, 4], setup: {x: {}, y: {steps: 1}}}");
    keep_only(grid, only, step_keys());
    return grid.scenarios.size();
  };
  EXPECT_EQ(kept({}), 12u);
  EXPECT_EQ(kept({"batch=1,4"}), 8u);
  EXPECT_EQ(kept({"batch=1,4", "setup=y", "model=a"}), 2u);
  EXPECT_EQ(kept({"ranks=1"}), 12u);
  EXPECT_THROW(kept({"batch"}), UserError);
  EXPECT_THROW(kept({"btch=1"}), UserError);
  EXPECT_THROW(kept({"batch=3"}), UserError);
}

TEST(GridFile, MemoryIsCountedBySeveralMeasures) {
  const GridMemory usual = grid_of("matrix: {model: a}").memory;
  EXPECT_TRUE(usual.plan && usual.device && !usual.host);
  const GridMemory host = grid_of("matrix: {model: a}\nmemory: host").memory;
  EXPECT_TRUE(!host.plan && !host.device && host.host);
  const GridMemory none = grid_of("matrix: {model: a}\nmemory: []").memory;
  EXPECT_TRUE(!none.plan && !none.device && !none.host);
}

TEST(GridFile, TheExamplesAreRead) {
  for (const auto& entry : std::filesystem::directory_iterator(HONE_SOURCE_DIR "/examples/grids")) {
    const GridFile grid = read_grid_file(entry.path().string(), step_keys());
    EXPECT_GT(grid.scenarios.size(), 10u) << entry.path();
    EXPECT_THAT(grid.notes, IsEmpty()) << entry.path();
  }
}

}  // namespace
}  // namespace hone
