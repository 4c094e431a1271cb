#include "report/startup_tables.h"

#include <gtest/gtest.h>

#include <vector>

namespace hone {
namespace {

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

}  // namespace
}  // namespace hone
