#include "report/table.h"

#include <gtest/gtest.h>

#include "report/terminal.h"

namespace hone {
namespace {

TEST(Table, AlignsColumnsByTheirWidestCell) {
  Table table({{"group"}, {"tensors", Align::kRight}, {"trainable"}});
  table.add_row({"attention", "16", "yes"}).add_row({"日本", "4"}).add_rule().add_row({"all", "20"});
  EXPECT_EQ(table.to_string(false, 0),
            "group      tensors  trainable\n"
            "─────────────────────────────\n"
            "attention       16  yes\n"
            "日本             4\n"
            "─────────────────────────────\n"
            "all             20\n");
}

TEST(Table, ColourDoesNotChangeTheColumns) {
  Table table({{"name"}, {"bytes", Align::kRight}});
  table.add_row({"weights", "1.2 GB"});
  const auto plain = split_lines(table.to_string(false)), color = split_lines(table.to_string(true));
  ASSERT_EQ(plain.size(), color.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(display_width(plain[i]), display_width(color[i]));
  EXPECT_NE(plain[0], color[0]);
}

TEST(Table, ACellCannotBreakTheLine) {
  Table table({{"name"}});
  table.add_row({"evil\n\x1b[2Jname"});
  EXPECT_EQ(split_lines(table.to_string()).size(), 3u);
  EXPECT_EQ(table.to_string().find('\x1b'), std::string::npos);
}

TEST(Table, ColumnsThatDoNotFitAreDroppedThenTheWidestIsCut) {
  Table table({{"data set"}, {"format", Align::kLeft, 1}, {"rows", Align::kRight}, {"p99", Align::kRight, 2}});
  table.add_row({"a-data-set-with-a-long-name", "messages", "12,000", "1,000"});
  EXPECT_NE(table.to_string(false, 2, 60).find("p99"), std::string::npos) << "it fits";
  const std::string narrower = table.to_string(false, 2, 50);
  EXPECT_EQ(narrower.find("p99"), std::string::npos);
  EXPECT_NE(narrower.find("messages"), std::string::npos);
  EXPECT_EQ(table.to_string(false, 2, 30),
            "  data set                rows\n"
            "  ────────────────────────────\n"
            "  a-data-set-with-a-l…  12,000\n");
  EXPECT_NE(table.to_string(false, 2, 10).find("a-data-set-…  12,000"), std::string::npos) << "no cell is cut further";
}

}  // namespace
}  // namespace hone
