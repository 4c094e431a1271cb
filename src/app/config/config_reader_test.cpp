#include "app/config/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/json.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = ConfigNode::Kind;

std::string failure(const std::string& text, bool json = false) {
  try {
    (void)parse_config_text(text, "run.yaml", json);
  } catch (const UserError& error) {
    return error.where() + " " + error.message();
  }
  return "";
}

TEST(ConfigReader, RemembersTheLineOfEveryKey) {
  const ConfigNode root = parse_config_text("# comment\nlr: 1e-4\n\ntraining:\n  epochs: 3\n", "run.yaml");
  EXPECT_EQ(root.find("lr")->where, "run.yaml:2");
  EXPECT_EQ(root.find("training")->find("epochs")->where, "run.yaml:5");
}

TEST(ConfigReader, KeepsRepeatedKeysSoThatTheyCanBeCompared) {
  EXPECT_EQ(parse_config_text("a: 1\na: 2\n", "run.yaml").members.size(), 2u);
}

TEST(ConfigReader, ReadsJsonWithTabsAndKnowsItsLines) {
  const ConfigNode root =
      parse_config_text("{\n\t\"lr\": 1e-4,\n\t\"d\": {\"a\":\"x\\ty\", \"b\": [1, null]}\n}", "run.json", true);
  EXPECT_EQ(root.find("lr")->where, "run.json:2");
  EXPECT_EQ(root.find("d")->find("a")->text, "x\ty");
  EXPECT_EQ(root.find("d")->find("b")->items[1].kind, Kind::kNull);
}

TEST(ConfigReader, NamesTheLineOfBrokenText) {
  EXPECT_THAT(failure("a: 1\nb: [1, 2\nc: 3\n"), StartsWith("run.yaml:3 this is not YAML"));
  EXPECT_THAT(failure("{\n\"a\": 1,\n}", true), StartsWith("run.yaml:3 this is not JSON"));
  EXPECT_THAT(failure("- a\n- b\n"), StartsWith("run.yaml:1 a configuration is a mapping"));
  EXPECT_THAT(failure("[a]: 1\n"), HasSubstr("a key must be text"));
}

TEST(ConfigReader, BoundsWhatAFileCanBecome) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'j'; ++c) {
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i) bomb += std::string(i ? ", *" : "*") + static_cast<char>(c - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(failure(bomb), HasSubstr("nests too deeply or repeats too much"));
  EXPECT_THAT(failure("a: " + std::string(40, '[') + std::string(40, ']')), HasSubstr("nests too deeply"));
  EXPECT_THAT(failure("a: &a [*a]\n"), HasSubstr("run.yaml"));
  EXPECT_THAT(failure(std::string((4u << 20) + 1, '#')), HasSubstr("larger than 4 MiB"));
}

TEST(ConfigReader, ReadsAFileAndSaysIfItCannot) {
  const auto path = std::filesystem::temp_directory_path() / "hone_config_reader_test.yaml";
  std::ofstream(path) << "seed: 7\n";
  EXPECT_EQ(read_config_file(path.string()).find("seed")->text, "7");
  std::filesystem::remove(path);
  EXPECT_THROW(read_config_file(path.string()), UserError);
  EXPECT_THROW(read_config_file("/"), UserError);
}

TEST(ConfigReader, AnEmptyFileIsAnEmptyMapping) { EXPECT_EQ(parse_config_text("", "run.yaml").kind, Kind::kMapping); }

TEST(Environment, ReplacesVariables) {
  setenv("HONE_TEST_DIR", "/data", 1);
  unsetenv("HONE_TEST_MISSING");
  EXPECT_EQ(expand_environment("${HONE_TEST_DIR}/a-${HONE_TEST_MISSING:-b}", "x"), "/data/a-b");
  EXPECT_EQ(expand_environment("$${HONE_TEST_DIR} $HOME ${", "x"), "${HONE_TEST_DIR} $HOME ${");
  EXPECT_EQ(parse_config_text("path: ${HONE_TEST_DIR}/m", "run.yaml").find("path")->text, "/data/m");
}

TEST(Environment, AVariableThatIsNotSetIsAnErrorWithItsLine) {
  unsetenv("HONE_TEST_MISSING");
  EXPECT_EQ(failure("a: 1\nb: ${HONE_TEST_MISSING}\n"),
            "run.yaml:2 the environment variable HONE_TEST_MISSING is not set");
}

TEST(NaturalJson, ReadsScalarsAsYamlDoes) {
  const ConfigNode root = parse_config_text("v: [1, -2, 1.5, true, no, \"1\", ~, {a: 1e3}, 9007199254740993]", "x");
  EXPECT_EQ(natural_json(*root.find("v")).dump(), R"([1,-2,1.5,true,"no","1",null,{"a":1000.0},9007199254740993])");
}

TEST(Shown, IsShortAndNeverCutsACharacter) {
  EXPECT_EQ(shown(parse_config_text("v: [a, {b: 1}]", "x").members[0].value), "[a, {b: 1}]");
  ConfigNode node;
  node.kind = Kind::kScalar;
  for (int i = 0; i < 40; ++i) node.text += "aé";
  EXPECT_EQ(shown(node).size(), 60u + std::string("…").size());  // 3 bytes a pair: 60 is a boundary
  node.text = "x" + node.text;
  EXPECT_TRUE(shown(node).ends_with("é…") || shown(node).ends_with("a…"));
}

}  // namespace
}  // namespace hone
