#include "report/metrics_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "core/error.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Json step_line(int64_t step, double loss) {
  const std::vector<Metric> metrics = {{"step", static_cast<double>(step), true}, {"loss", loss}};
  return metrics_object(metrics);
}

TEST(MetricsObject, CountsAreWholeAndOtherNumbersKeepTheirBits) {
  const std::vector<Metric> metrics = {{"step", 3, true}, {"loss", 0.1}, {"learning_rate", 1e-5}};
  const std::string text = metrics_object(metrics).dump();
  EXPECT_EQ(text, R"({"step":3,"loss":0.1,"learning_rate":1e-05})");
  EXPECT_EQ(Json::parse(text)["loss"].get<double>(), 0.1);
}

TEST(MetricsObject, ANumberThatIsNotFiniteIsNullAndNamed) {
  const std::vector<Metric> metrics = {
      {"loss", -std::numeric_limits<double>::quiet_NaN()}, {"grad_norm", kInf}, {"entropy", -kInf}, {"epoch", 1.5}};
  EXPECT_EQ(metrics_object(metrics).dump(),
            R"({"loss":null,"grad_norm":null,"entropy":null,"epoch":1.5,)"
            R"("nonfinite":{"loss":"NaN","grad_norm":"Infinity","entropy":"-Infinity"}})");
}

TEST(MetricsFile, ALineIsReadableBeforeTheFileIsClosed) {
  const TestFolder folder;
  auto file = MetricsFile::create(folder / "new/metrics.jsonl");
  file.append(step_line(1, 2.5));
  EXPECT_EQ(read_text(folder / "new/metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n");
}

TEST(MetricsFile, ANewRunReplacesTheOldFile) {
  const TestFolder folder;
  MetricsFile::create(folder / "metrics.jsonl").append(step_line(1, 2.5));
  MetricsFile::create(folder / "metrics.jsonl").append(step_line(1, 3.5));
  EXPECT_EQ(read_text(folder / "metrics.jsonl"), "{\"step\":1,\"loss\":3.5}\n");
}

TEST(MetricsFile, ResumeDropsLaterStepsAndKeepsTheRestByteForByte) {
  const TestFolder folder;
  write_text(folder / "metrics.jsonl",
             "{\"step\": 1, \"loss\": 2.50}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"eval_loss\":1.9}\n"
             "{\"step\":3,\"loss\":1}\n");
  ResumedMetrics found;
  auto file = MetricsFile::resume(folder / "metrics.jsonl", 2, found);
  EXPECT_EQ(found.history.size(), 3u);
  EXPECT_EQ(found.dropped_later, 1u);
  EXPECT_EQ(found.dropped_broken, 0u);
  file.append(step_line(3, 0.5));
  EXPECT_EQ(read_text(folder / "metrics.jsonl"),
            "{\"step\": 1, \"loss\": 2.50}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"eval_loss\":1.9}\n"
            "{\"step\":3,\"loss\":0.5}\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "metrics.jsonl.tmp"));
}

TEST(MetricsFile, ResumeDropsTheLineThatACrashCut) {
  const TestFolder folder;
  write_text(folder / "metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"lo");
  ResumedMetrics found;
  MetricsFile::resume(folder / "metrics.jsonl", 5, found).append(step_line(2, 2.25));
  EXPECT_EQ(found.dropped_broken, 1u);
  EXPECT_EQ(read_text(folder / "metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.25}\n");
}

TEST(MetricsFile, ResumeWithoutAFileStartsOne) {
  const TestFolder folder;
  ResumedMetrics found;
  MetricsFile::resume(folder / "metrics.jsonl", 5, found).append(step_line(6, 1));
  EXPECT_TRUE(found.history.empty());
  EXPECT_EQ(read_text(folder / "metrics.jsonl"), "{\"step\":6,\"loss\":1.0}\n");
}

TEST(MetricsFile, ALineWithoutEndIsRefusedNotReadForEver) {
  const TestFolder folder;
  write_text(folder / "metrics.jsonl", std::string(size_t{2} << 20, '['));
  ResumedMetrics found;
  EXPECT_THROW(MetricsFile::resume(folder / "metrics.jsonl", 1, found), UserError);
}

TEST(MetricsFile, AWriteThatFailsIsAnErrorAndResumeRepairsTheFile) {
  const TestFolder folder;
  {
    auto file = MetricsFile::create(folder / "metrics.jsonl");
    file.append(step_line(1, 2.5));
    const FileSizeLimit limit(30);
    try {
      file.append(step_line(2, 2.25));
      FAIL() << "the second line does not fit";
    } catch (const UserError& error) {
      EXPECT_NE(error.message().find("cannot write"), std::string::npos);
      EXPECT_EQ(error.where(), folder / "metrics.jsonl");
      EXPECT_FALSE(error.fix().empty());
    }
  }
  ResumedMetrics found;
  MetricsFile::resume(folder / "metrics.jsonl", 2, found).append(step_line(2, 2.25));
  EXPECT_EQ(read_text(folder / "metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.25}\n");
}

TEST(MetricsFile, AFolderThatCannotBeMadeIsTheUsersError) {
  const TestFolder folder;
  write_text(folder / "file", "not a folder");
  try {
    MetricsFile::create(folder / "file/metrics.jsonl");
    FAIL() << "a file cannot hold a file";
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find("cannot write"), std::string::npos);
    EXPECT_NE(error.fix().find("output_dir"), std::string::npos);
  }
}

}  // namespace
}  // namespace hone
