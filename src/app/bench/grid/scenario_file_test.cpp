#include "app/bench/grid/scenario_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/bench/grid/grid_testing.h"
#include "core/base/error.h"

namespace hone {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kScenarioFile = R"(scenarios:
  - name: full
    framework_config:
      -
      - moe-scattermoe-granite-ep1
      - moe-scattermoe-granite-ep2-padding-free-foak
    arguments:
      learning_rate: 5e-5
      torch_dtype: bfloat16
      gradient_accumulation_steps: null
      per_device_train_batch_size: 8
      gradient_checkpointing: true
      model_name_or_path:
        - ibm-granite/granite-3.0-3b-a800m-instruct
        - mistralai/Mixtral-8x7B-Instruct-v0.1
)";

GridFile scenarios_of(const std::string& text, const ScenarioSizes& sizes, std::vector<std::string>& notes) {
  return parse_grid(grid_of_scenarios(parse_config_text(text, "scenarios.yaml"), sizes, notes), step_keys());
}

std::string scenario_refusal(const std::string& text) {
  std::vector<std::string> notes;
  try {
    scenarios_of(text, {}, notes);
  } catch (const UserError& error) {
    return error.message() + " | " + error.where() + " | " + error.fix();
  }
  return "";
}

std::string file_with(const std::string& arguments, const std::string& framework = "[]") {
  return "scenarios:\n  - name: a\n    framework_config: " + framework +
         "\n    arguments: {model_name_or_path: qwen3-8b" + arguments + "}\n";
}

TEST(ScenarioFile, IsAGridOfFrameworksListsAndRanks) {
  std::vector<std::string> notes;
  const GridFile grid = scenarios_of(kScenarioFile, {{1, 2}, 32}, notes);
  const std::string rest = " --batch 8 --micro-batches 4 --dtype bfloat16 --recompute everything --json -";
  const std::vector<std::string> commands = commands_of(grid);
  // On one rank the frameworks are the same command.
  EXPECT_EQ(commands.size(), 6u) << ::testing::PrintToString(commands);
  EXPECT_THAT(commands, Contains("hone bench step --model granite-3b-a800m" + rest));
  EXPECT_THAT(
      commands,
      Contains("hone launch -n 2 -- bench step --model mixtral-8x7b --batch 8 --micro-batches 2 --dtype bfloat16 "
               "--recompute everything --zero-stage 3 --expert-parallel-size 2 --json -"));
  EXPECT_THAT(notes, ElementsAre("no effect on the time of a step: learning_rate"));
  EXPECT_EQ(*grid.scenarios.front().settings.find("scenario"), "full/none/ibm-granite/granite-3.0-3b-a800m-instruct");
}

TEST(ScenarioFile, LeavesOutRanksThatExpertsDoNotDivide) {
  std::vector<std::string> notes;
  const GridFile grid = scenarios_of(file_with("", "[moe-scattermoe-granite-ep2]"), {{2, 3}, {}}, notes);
  EXPECT_EQ(grid.scenarios.size(), 1u);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("with 3 ranks is left out")));
}

TEST(ScenarioFile, AdaptersAreAMode) {
  std::vector<std::string> notes;
  const auto command = [&](const std::string& arguments) {
    return commands_of(scenarios_of(file_with(arguments), {}, notes)).front();
  };
  EXPECT_THAT(command(", peft_method: lora, r: 8"), HasSubstr("--mode lora --lora-r 8"));
  EXPECT_THAT(command(", peft_method: lora, target_modules: [q_proj, v_proj]"), HasSubstr("--mode lora "));
  EXPECT_THAT(command(", target_modules: all-linear, peft_method: lora"), HasSubstr("--mode lora-all"));
}

TEST(ScenarioFile, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(scenario_refusal(file_with(", optimizer: sgd")),
              HasSubstr("'optimizer' is not known here | scenarios.yaml:4"));
  EXPECT_THAT(scenario_refusal(file_with(", torch_dtype: float16")), HasSubstr("float16 is not in this version"));
  EXPECT_THAT(scenario_refusal(file_with("", "[aadp-other]")), HasSubstr("'aadp' says in the framework"));
  EXPECT_THAT(scenario_refusal("scenarios:\n  - name: a\n    arguments: {model_name_or_path: org/NoSuch-1B}"),
              HasSubstr("the shape of 'org/NoSuch-1B' is not known"));
  EXPECT_THAT(scenario_refusal("scenarios: 3"), HasSubstr("not a list"));
  EXPECT_THAT(scenario_refusal("scenarios: []\nmatrix: {}"), HasSubstr("no 'matrix'"));
  EXPECT_THAT(scenario_refusal(file_with("")), IsEmpty());
}

}  // namespace
}  // namespace hone
