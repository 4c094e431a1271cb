#include "data/node_shards.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <set>

#include "data/csv_writer.h"
#include "data/data_testing.h"

namespace hone {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string rows(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += Json{{"prompt", "be, brief"}, {"question", fmt::format("q{}", i)}, {"response", "say \"a\""}}.dump() + "\n";
  }
  return text;
}

TEST(CsvRecord, QuotesWhatNeedsIt) {
  EXPECT_EQ(csv_record({"a", "b c", ""}), "a,b c,\n");
  EXPECT_EQ(csv_record({"a,b", "say \"x\"", "two\nlines", " blank"}),
            "\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\" blank\"\n");
  EXPECT_EQ(csv_record({""}), "\"\"\n");
}

TEST(NodeShards, AreShuffledPartsOfEqualSizeAndTheRestGoesToTheLast) {
  const DataFolder folder;
  const NodeShards shards = write_node_shards({{folder.write("faq.jsonl", rows(10))}}, {4, folder / "out"});
  EXPECT_EQ(shards.samples_per_node, 2);
  const Json statistics = Json::parse(std::ifstream(folder / "out/dataset_stats.json"));
  EXPECT_EQ(statistics, (Json{{"total_samples", 10},
                              {"num_nodes", 4},
                              {"samples_per_node", 2},
                              {"columns", {"prompt", "question", "response"}}}));
  std::set<std::string> seen;
  std::string order;
  for (int node = 0; node < 4; ++node) {
    std::vector<std::string> lines = lines_of(folder / fmt::format("out/training_data_node_{}.csv", node));
    ASSERT_EQ(lines.size(), node == 3 ? 5u : 3u);
    EXPECT_EQ(lines[0], "prompt,question,response");
    for (size_t i = 1; i < lines.size(); ++i) {
      EXPECT_THAT(lines[i], testing::MatchesRegex("\"be, brief\",q[0-9],\"say \"\"a\"\"\""));
      seen.insert(lines[i]);
      order += lines[i].substr(12, 2);
    }
  }
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_NE(order, "q0q1q2q3q4q5q6q7q8q9");
  write_node_shards({{folder / "faq.jsonl"}}, {4, folder / "again"});
  EXPECT_EQ(lines_of(folder / "again/training_data_node_2.csv"), lines_of(folder / "out/training_data_node_2.csv"));
  write_node_shards({{folder / "faq.jsonl"}}, {4, folder / "other", 43});
  EXPECT_NE(lines_of(folder / "other/training_data_node_3.csv"), lines_of(folder / "out/training_data_node_3.csv"));
}

TEST(NodeShards, OtherRowsKeepTheirJson) {
  const DataFolder folder;
  const std::string line = R"({"messages":[{"role":"user","content":"a"}],"id":7})";
  write_node_shards({{folder.write("chat.jsonl", line + "\n" + line + "\n")}}, {2, folder / "out"});
  EXPECT_THAT(lines_of(folder / "out/training_data_node_1.jsonl"), ElementsAre(line));
  const Json statistics = Json::parse(std::ifstream(folder / "out/dataset_stats.json"));
  EXPECT_EQ(statistics["columns"], (Json{"messages", "id"}));
  // Rows of the other kind replace them, so that a folder never has both.
  write_node_shards({{folder.write("faq.jsonl", rows(4))}}, {2, folder / "out"});
  EXPECT_FALSE(fs::exists(folder / "out/training_data_node_1.jsonl"));
}

TEST(NodeShards, RefuseWhatCannotBeSplitOrWouldMix) {
  const DataFolder folder;
  const std::vector<DatasetEntry> entries = {{folder.write("faq.jsonl", rows(3))}};
  EXPECT_THAT(refusal([&] {
                write_node_shards(entries, {4, folder / "out"});
              }),
              HasSubstr("3 rows cannot be split over 4 nodes"));
  write_node_shards(entries, {3, folder / "out"});
  EXPECT_THAT(refusal([&] {
                write_node_shards(entries, {2, folder / "out"});
              }),
              HasSubstr("the folder holds shards of a run with more nodes"));
}

}  // namespace
}  // namespace hone
