#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "report/folder_testing.h"
#include "report/metrics.h"
#include "report/metrics_file.h"
#include "report/tensorboard.h"

namespace hone {
namespace {

std::vector<std::string> names(const std::vector<Metric>& metrics) {
  std::vector<std::string> result;
  for (const auto& metric : metrics) result.push_back(metric.name);
  return result;
}

TEST(Metrics, AFullStepHasTheNamesThatUsersPlot) {
  StepMetrics m;
  for (auto* value :
       {&m.mean_token_accuracy, &m.entropy, &m.mfu, &m.max_alloc, &m.host_rss, &m.eta, &m.gpu_utilization, &m.gpu_power,
        &m.gpu_temperature, &m.router_aux_loss, &m.router_z_loss, &m.router_load_max_over_mean, &m.router_entropy,
        &m.router_dead_experts, &m.router_dropped_tokens, &m.packing_efficiency, &m.data_wait, &m.dropped_samples}) {
    *value = 1.0;
  }
  m.dataset_loss = {{"chat", 1.5}};
  EXPECT_THAT(names(metric_list(m)),
              testing::ElementsAre("step", "epoch", "loss", "loss_with_aux", "grad_norm", "learning_rate", "num_tokens",
                                   "num_supervised_tokens", "tokens_per_second", "samples_per_second", "step_time",
                                   "mean_token_accuracy", "entropy", "mfu", "memory/max_alloc", "memory/host_rss",
                                   "gpu/utilization", "gpu/power", "gpu/temperature", "eta", "router/aux_loss",
                                   "router/z_loss", "router/load_max_over_mean", "router/entropy",
                                   "router/dead_experts", "router/dropped_tokens", "data/packing_efficiency",
                                   "data/wait", "data/dropped_samples", "loss/chat"));
}

TEST(Metrics, WhatWasNotMeasuredIsNotWritten) {
  for (const auto& name : names(metric_list(StepMetrics{}))) {
    EXPECT_EQ(name.rfind("router/", 0), std::string::npos) << name;
    EXPECT_EQ(name.rfind("memory/", 0), std::string::npos) << name;
  }
}

TEST(Metrics, AnEvaluationHasItsOwnNames) {
  EvalMetrics m;
  m.eval_mean_token_accuracy = 0.5;
  EXPECT_THAT(names(metric_list(m)),
              testing::ElementsAre("step", "epoch", "eval_loss", "eval_perplexity", "eval_mean_token_accuracy"));
}

constexpr double kMegabyte = 1 << 20;

StepMetrics step(int64_t number, double seconds, int64_t tokens_so_far, double allocated, double reserved) {
  StepMetrics m;
  m.step = number;
  m.step_time = seconds;
  m.num_tokens = tokens_so_far;
  m.allocated = allocated * kMegabyte;
  m.max_alloc = reserved * kMegabyte;
  return m;
}

TEST(Efficiency, TheFirstTwoStepsHaveNoneAndEnterNoAverage) {
  EfficiencyMeter meter(10);
  EXPECT_FALSE(meter.after(step(1, 60, 100, 5, 9)));
  EXPECT_FALSE(meter.after(step(2, 60, 200, 5, 9)));
  const auto third = meter.after(step(3, 2, 300, 3, 8));
  ASSERT_TRUE(third);
  EXPECT_DOUBLE_EQ(third->step_time_sec, 2);
  EXPECT_DOUBLE_EQ(third->avg_step_time_sec, 2);
  EXPECT_DOUBLE_EQ(third->time_to_completion_sec, 14);
  EXPECT_DOUBLE_EQ(third->estimated_total_time_sec, 20);
  EXPECT_DOUBLE_EQ(third->step_tokens_per_second, 50);
  EXPECT_DOUBLE_EQ(third->total_peak_memory_allocated_MB, 3);
  EXPECT_DOUBLE_EQ(third->total_peak_memory_reserved_MB, 8);
}

TEST(Efficiency, AveragesAreTotalsOverTotalsAndPeaksStay) {
  EfficiencyMeter meter(4);
  meter.after(step(1, 60, 1, 1, 1));
  meter.after(step(2, 60, 2, 1, 1));
  meter.after(step(3, 1, 102, 7, 9));
  const auto last = meter.after(step(4, 3, 122, 4, 6));
  ASSERT_TRUE(last);
  EXPECT_DOUBLE_EQ(last->avg_step_time_sec, 2);
  EXPECT_DOUBLE_EQ(last->time_to_completion_sec, 0);
  EXPECT_DOUBLE_EQ(last->step_tokens_per_second, 20.0 / 3);
  EXPECT_DOUBLE_EQ(last->avg_tokens_per_second, 120.0 / 4);
  EXPECT_DOUBLE_EQ(last->step_peak_memory_allocated_MB, 4);
  EXPECT_DOUBLE_EQ(last->total_peak_memory_allocated_MB, 7);
  EXPECT_DOUBLE_EQ(last->step_peak_memory_reserved_MB, 6);
  EXPECT_DOUBLE_EQ(last->total_peak_memory_reserved_MB, 9);
}

TEST(Efficiency, AResumedRunWarmsUpAgainAndCountsItsOwnTokens) {
  EfficiencyMeter meter(100);
  EXPECT_FALSE(meter.after(step(51, 60, 51'000, 1, 1)));
  EXPECT_FALSE(meter.after(step(52, 60, 52'000, 1, 1)));
  const auto third = meter.after(step(53, 2, 53'000, 1, 1));
  ASSERT_TRUE(third);
  EXPECT_DOUBLE_EQ(third->avg_tokens_per_second, 500);
  EXPECT_DOUBLE_EQ(third->time_to_completion_sec, 47 * 2);
}

TEST(Efficiency, HasItsExactNames) {
  StepMetrics m;
  m.efficiency = Efficiency{};
  std::vector<std::string> names;
  for (const Metric& metric : metric_list(m)) names.push_back(metric.name);
  EXPECT_THAT(names,
              testing::IsSupersetOf(
                  {"step_time_sec", "avg_step_time_sec", "time_to_completion_sec", "estimated_total_time_sec",
                   "step_peak_memory_allocated_MB", "step_peak_memory_reserved_MB", "total_peak_memory_allocated_MB",
                   "total_peak_memory_reserved_MB", "step_tokens_per_second", "avg_tokens_per_second"}));
}

TEST(AppendFile, AddsBehindWhatIsThereAndMakesItsFolder) {
  const TestFolder folder;
  AppendFile(folder / "a/b/log").write("one\n");
  AppendFile(folder / "a/b/log").write("two\n");
  EXPECT_EQ(read_text(folder / "a/b/log"), "one\ntwo\n");
}

TEST(AppendFile, ExclusiveRefusesAnExistingFile) {
  const TestFolder folder;
  AppendFile(folder / "log", true).write("one\n");
  EXPECT_THROW(AppendFile(folder / "log", true), std::system_error);
}

TEST(AppendFile, AFullDiskIsAnErrorWithThePath) {
  const TestFolder folder;
  AppendFile file(folder / "log");
  const FileSizeLimit limit(2);
  try {
    file.write("more than two bytes");
    FAIL() << "writing to a full disk must fail";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::file_too_large);
    EXPECT_NE(std::string(error.what()).find("log"), std::string::npos);
  }
}

TEST(AppendFile, ReplacesALinkAndRefusesWhatIsNoRegularFile) {
  const TestFolder folder;
  write_text(folder / "precious", "mine");
  std::filesystem::create_symlink(folder / "precious", folder / "log");
  AppendFile(folder / "log").write("one");
  EXPECT_EQ(read_text(folder / "precious"), "mine");
  EXPECT_EQ(read_text(folder / "log"), "one");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(AppendFile(folder / "pipe"), std::system_error);
}

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
  auto file = MetricsFile::resume(folder / "metrics.jsonl", {.step = 2}, found);
  EXPECT_EQ(found.history.size(), 3u);
  EXPECT_EQ(found.dropped_later, 1u);
  EXPECT_EQ(found.dropped_broken, 0u);
  file.append(step_line(3, 0.5));
  EXPECT_EQ(read_text(folder / "metrics.jsonl"),
            "{\"step\": 1, \"loss\": 2.50}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"eval_loss\":1.9}\n"
            "{\"step\":3,\"loss\":0.5}\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "metrics.jsonl.tmp"));
}

TEST(MetricsFile, AnEvaluationThatIsDueIsWrittenAgain) {
  const TestFolder folder;
  const std::string kept = "{\"step\":1,\"eval_loss\":2}\n{\"step\":2,\"loss\":2}\n";
  write_text(folder / "metrics.jsonl", kept + "{\"step\":2,\"eval_loss\":1.9}\n");
  ResumedMetrics found;
  MetricsFile::resume(folder / "metrics.jsonl", {.step = 2, .evaluation_due = true}, found);
  EXPECT_EQ(found.dropped_later, 1u);
  EXPECT_EQ(read_text(folder / "metrics.jsonl"), kept);
}

TEST(MetricsFile, ResumeDropsTheLineThatACrashCut) {
  const TestFolder folder;
  write_text(folder / "metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"lo");
  ResumedMetrics found;
  MetricsFile::resume(folder / "metrics.jsonl", {.step = 5}, found).append(step_line(2, 2.25));
  EXPECT_EQ(found.dropped_broken, 1u);
  EXPECT_EQ(read_text(folder / "metrics.jsonl"), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.25}\n");
}

TEST(MetricsFile, ResumeWithoutAFileStartsOne) {
  const TestFolder folder;
  ResumedMetrics found;
  MetricsFile::resume(folder / "metrics.jsonl", {.step = 5}, found).append(step_line(6, 1));
  EXPECT_TRUE(found.history.empty());
  EXPECT_EQ(read_text(folder / "metrics.jsonl"), "{\"step\":6,\"loss\":1.0}\n");
}

TEST(MetricsFile, ALineWithoutEndIsRefusedNotReadForEver) {
  const TestFolder folder;
  write_text(folder / "metrics.jsonl", std::string(size_t{2} << 20, '['));
  ResumedMetrics found;
  EXPECT_THROW(MetricsFile::resume(folder / "metrics.jsonl", {.step = 1}, found), UserError);
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
  MetricsFile::resume(folder / "metrics.jsonl", {.step = 2}, found).append(step_line(2, 2.25));
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

TEST(TrainerState, HasTheFieldsThatHuggingFaceReads) {
  const TestFolder folder;
  TrainerState state{.global_step = 4, .max_steps = 10, .epoch = 0.4, .num_train_epochs = 0.5};
  state.log_history = Json::array({Json{{"step", 4}, {"loss", 1.5}, {"epoch", 0.4}}});
  state.best = BestModel{.metric = 1.25, .step = 3, .checkpoint = "out/checkpoint-3"};
  write_trainer_state(state, folder.path());
  const Json json = Json::parse(read_text(folder / "trainer_state.json"));
  EXPECT_EQ(json["global_step"], 4);
  EXPECT_EQ(json["max_steps"], 10);
  EXPECT_EQ(json["num_train_epochs"], 1) << "a fraction of an epoch counts as one there";
  EXPECT_EQ(json["epoch"], 0.4);
  EXPECT_EQ(json["best_metric"], 1.25);
  EXPECT_EQ(json["best_global_step"], 3);
  EXPECT_EQ(json["best_model_checkpoint"], "out/checkpoint-3");
  EXPECT_EQ(json["log_history"][0]["loss"], 1.5);
  for (const char* field : {"is_local_process_zero", "is_world_process_zero", "trial_name", "total_flos"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
}

TEST(TrainerState, WithoutAnEvaluationThereIsNoBest) {
  const Json json = to_json(TrainerState{});
  EXPECT_TRUE(json["best_metric"].is_null());
  EXPECT_TRUE(json["best_model_checkpoint"].is_null());
  EXPECT_TRUE(
      to_json(TrainerState{.best = BestModel{.metric = std::numeric_limits<double>::quiet_NaN()}})["best_metric"]
          .is_null())
      << "NaN is not JSON";
}

TEST(TrainerState, AFolderThatIsMissingIsTheUsersError) {
  const TestFolder folder;
  write_text(folder / "file", "");
  EXPECT_THROW(write_trainer_state(TrainerState{}, folder / "file"), UserError);
}

// A reader written from the format's description, independent of the writer: it fails the test for any invalid byte.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.empty(); }

  std::string_view take(size_t count) {
    EXPECT_LE(count, bytes_.size());
    const auto result = bytes_.substr(0, count);
    bytes_.remove_prefix(std::min(count, bytes_.size()));
    return result;
  }
  uint64_t fixed(size_t bytes) {
    uint64_t value = 0;
    const auto raw = take(bytes);
    for (size_t i = raw.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(raw[i]);
    return value;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = fixed(1);
      value |= (byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    return value;
  }

 private:
  std::string_view bytes_;
};

struct Event {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  uint64_t session_status = 0;
  std::vector<std::pair<std::string, float>> scalars;
};

void read_value(std::string_view bytes, Event& event) {
  Reader value(bytes);
  EXPECT_EQ(value.varint(), 1u << 3 | 2u);
  const std::string tag(value.take(value.varint()));
  EXPECT_EQ(value.varint(), 2u << 3 | 5u);
  event.scalars.emplace_back(tag, std::bit_cast<float>(static_cast<uint32_t>(value.fixed(4))));
  EXPECT_TRUE(value.done());
}

Event read_event(std::string_view bytes) {
  Event event;
  Reader reader(bytes);
  while (!reader.done()) {
    const uint64_t key = reader.varint();
    if (key == (1 << 3 | 1)) {
      event.wall_time = std::bit_cast<double>(reader.fixed(8));
    } else if (key == (2 << 3 | 0)) {
      event.step = static_cast<int64_t>(reader.varint());
    } else if (key == (3 << 3 | 2)) {
      event.file_version = reader.take(reader.varint());
    } else if (key == (5 << 3 | 2)) {
      Reader summary(reader.take(reader.varint()));
      while (!summary.done()) {
        EXPECT_EQ(summary.varint(), 1u << 3 | 2u);
        read_value(summary.take(summary.varint()), event);
      }
    } else if (key == (7 << 3 | 2)) {
      Reader session(reader.take(reader.varint()));
      EXPECT_EQ(session.varint(), 1u << 3 | 0u);
      event.session_status = session.varint();
    } else {
      ADD_FAILURE() << "unknown field " << key;
      return event;
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& path) {
  const std::string file = read_text(path);
  Reader reader(file);
  std::vector<Event> events;
  while (!reader.done() && !testing::Test::HasFailure()) {
    const auto length_bytes = reader.take(8);
    EXPECT_EQ(reader.fixed(4), masked_crc32c(length_bytes));
    const auto bytes = reader.take(Reader(length_bytes).fixed(8));
    EXPECT_EQ(reader.fixed(4), masked_crc32c(bytes));
    events.push_back(read_event(bytes));
  }
  return events;
}

TEST(TensorBoard, TheFileStartsWithItsVersionAndHoldsTheScalars) {
  const TestFolder folder;
  TensorBoardWriter writer(folder / "runs");
  const std::vector<Metric> metrics = {{"step", 300, true}, {"loss", 1.25}, {"router/aux_loss", 0.5}};
  writer.write(300, metrics);
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_EQ(events[1].step, 300);
  ASSERT_EQ(events[1].scalars.size(), 2u) << "step is the axis, not a scalar";
  EXPECT_EQ(events[1].scalars[0], (std::pair<std::string, float>("loss", 1.25f)));
  EXPECT_EQ(events[1].scalars[1], (std::pair<std::string, float>("router/aux_loss", 0.5f)));
}

TEST(TensorBoard, TheFileNameIsWhatTensorBoardLooksFor) {
  const TestFolder folder;
  const std::string name = std::filesystem::path(TensorBoardWriter(folder.path()).path()).filename();
  EXPECT_EQ(name.rfind("events.out.tfevents.", 0), 0u);
}

TEST(TensorBoard, TwoRunsInOneSecondDoNotShareAFile) {
  const TestFolder folder;
  const TensorBoardWriter first(folder.path()), second(folder.path()), third(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_LT(first.path(), second.path()) << "readers take the files in the order of their names";
  EXPECT_EQ(read_events(third.path()).size(), 1u);
}

TEST(TensorBoard, NaNStaysVisible) {
  const TestFolder folder;
  TensorBoardWriter writer(folder.path());
  const std::vector<Metric> metrics = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
  writer.write(1, metrics);
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(std::isnan(events[1].scalars.at(0).second));
}

TEST(TensorBoard, AResumedRunForgetsTheStepsItRepeats) {
  const TestFolder folder;
  TensorBoardWriter writer(folder.path());
  writer.forget_from(101);
  const auto events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].session_status, 1u);
  EXPECT_EQ(events[1].step, 101);
}

}  // namespace
}  // namespace hone
