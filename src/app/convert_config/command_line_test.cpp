#include "app/convert_config/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hone {
namespace {

std::vector<std::string> arguments_of_script(const std::string& text) {
  std::vector<std::string> words;
  for (const ShellWord& word : read_shell_script(text, "launch.sh").arguments) words.push_back(word.text);
  return words;
}

TEST(CommandLine, ArgumentsOfTheScriptKeepTheNamesOfTheirVariables) {
  const std::string tail =
      "\naccelerate launch fine_tune_qwen3.py --dataset_path ./data/node_${NODE_ID}.csv --seed $S\n";
  EXPECT_THAT(arguments_of_script("NODE_ID=${1:-0}\nS=$2" + tail),
              testing::ElementsAre("--dataset_path", "./data/node_${NODE_ID:-0}.csv", "--seed", "${S}"));
  EXPECT_THAT(arguments_of_script("export NODE_ID=\"${1}\"\nS=7" + tail),
              testing::ElementsAre("--dataset_path", "./data/node_${NODE_ID}.csv", "--seed", "7"));
  EXPECT_THAT(arguments_of_script("NODE_ID=a${1:-0}\nS=${X:-3}" + tail),
              testing::ElementsAre("--dataset_path", "./data/node_a${1:-0}.csv", "--seed", "${X:-3}"));
}

}  // namespace
}  // namespace hone
