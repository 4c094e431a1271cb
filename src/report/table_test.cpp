#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "report/humanise.h"
#include "report/table.h"
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

TEST(ParameterTable, ShowsWhatIsTrainedAndTheTotal) {
  const std::vector<ParameterGroupRow> rows = {
      {"attention", 16, 1'000'000, 0}, {"experts", 8, 9'000'000, 0}, {"lora", 32, 50'000, 50'000}};
  EXPECT_EQ(parameter_table(rows, false),
            "  group      tensors  parameters  trainable\n"
            "  ─────────────────────────────────────────\n"
            "  attention       16   1,000,000          -\n"
            "  experts          8   9,000,000          -\n"
            "  lora            32      50,000        all\n"
            "  ─────────────────────────────────────────\n"
            "  total           56  10,050,000     50,000\n");
}

TEST(TrainableSummary, IsThePeftLine) {
  EXPECT_EQ(trainable_summary(4194304, 6742609920),
            "trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622");
  EXPECT_EQ(trainable_summary(0, 0), "trainable params: 0 || all params: 0 || trainable%: 0.0000");
}

TEST(MemoryTable, SaysWhenThePlanDoesNotFit) {
  const std::vector<MemoryRow> rows = {{"weights", 6'000'000'000, "bfloat16"}, {"optimizer", 2'000'000'000, ""}};
  const std::string fits = memory_table(rows, 16'000'000'000, false);
  EXPECT_NE(fits.find("  weights    6.0 GB    75%  bfloat16\n"), std::string::npos) << fits;
  EXPECT_NE(fits.find("  total      8.0 GB         of 16.0 GB (50%)\n"), std::string::npos) << fits;
  EXPECT_NE(memory_table(rows, 4'000'000'000, false).find("does not fit"), std::string::npos);
  EXPECT_EQ(memory_table(rows, 0, false).find(" of "), std::string::npos);
}

TEST(MemoryLine, HasWhatTakesMemory) {
  const std::vector<MemoryRow> rows = {{"weights", 2'000'000'000}, {"optimizer", 0}, {"activations", 500'000'000}};
  EXPECT_EQ(memory_line(rows, 10'000'000'000), "memory 2.5 GB of 10.0 GB: weights 2.0 GB, activations 500 MB");
  EXPECT_EQ(memory_line(rows, 0), "memory 2.5 GB: weights 2.0 GB, activations 500 MB");
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Humanise, BytesUseDecimalUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1200), "1.2 kB");
  EXPECT_EQ(human_bytes(12.34e9), "12.3 GB");
  EXPECT_EQ(human_bytes(999.4e6), "999 MB");
  EXPECT_EQ(human_bytes(80e9), "80.0 GB");
}

TEST(Humanise, RoundingMovesToTheNextUnit) {
  EXPECT_EQ(human_bytes(999'960), "1.0 MB");
  EXPECT_EQ(human_count(999.96e3), "1.0M");
}

TEST(Humanise, CountsAreShort) {
  EXPECT_EQ(human_count(840), "840");
  EXPECT_EQ(human_count(81.25), "81.2");
  EXPECT_EQ(human_count(3417), "3.4k");
  EXPECT_EQ(human_count(123'400), "123k");
  EXPECT_EQ(human_count(30.5e9), "30.5B");
}

TEST(Humanise, DurationsChooseTwoUnits) {
  EXPECT_EQ(human_duration(0.84), "0.8s");
  EXPECT_EQ(human_duration(9.96), "10s");
  EXPECT_EQ(human_duration(59.7), "1m00s");
  EXPECT_EQ(human_duration(185), "3m05s");
  EXPECT_EQ(human_duration(3720), "1h02m");
  EXPECT_EQ(human_duration(2 * 86400 + 3 * 3600), "2d03h");
  EXPECT_EQ(human_duration(kInfinity), "-");
  EXPECT_EQ(human_duration(-1), "0.0s");
}

TEST(Humanise, CommasSeparateThousands) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(4194304), "4,194,304");
  EXPECT_EQ(with_commas(-100000), "-100,000");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Humanise, ShortNumbersKeepThreeDigits) {
  EXPECT_EQ(fixed_number(1.25, 4), "1.2500");
  EXPECT_EQ(exact_number(0.1), "0.1");
  for (const double sign : {1.0, -1.0}) {  // x86 makes NaN with a sign of 0 / 0
    const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
    for (const std::string& text : {short_number(nan), fixed_number(nan, 4), exact_number(nan)}) EXPECT_EQ(text, "NaN");
  }
  EXPECT_EQ(fixed_number(-std::numeric_limits<double>::infinity(), 1), "-Inf");
  EXPECT_EQ(short_number(9.85e-5), "9.85e-5");
  EXPECT_EQ(short_number(0.8731), "0.873");
  EXPECT_EQ(short_number(0.01234), "0.0123");
  EXPECT_EQ(short_number(1.2345), "1.23");
  EXPECT_EQ(short_number(9.999), "10.0");
  EXPECT_EQ(short_number(123.4), "123");
  EXPECT_EQ(short_number(1.5e6), "1.50e6");
  EXPECT_EQ(short_number(1.349e-15), "1.3e-15");
  EXPECT_EQ(short_number(0), "0");
}

TEST(Humanise, NonFiniteNumbersAreNamed) {
  EXPECT_EQ(short_number(kNan), "NaN");
  EXPECT_EQ(short_number(-kInfinity), "-Inf");
  EXPECT_EQ(human_count(kInfinity), "Inf");
}

}  // namespace
}  // namespace hone
