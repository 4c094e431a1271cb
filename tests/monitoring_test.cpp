// What a run tells while it goes on, and what other tools read of it.
#include <cmath>

#include "device_main.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

TEST(Monitoring, ARunWritesEveryNameThatUsersPlot) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const Outcome outcome = run_hone(
      train_arguments(model, data, folder / "out", {"max_steps=4", "eval_steps=4", "val_split=4", "dtype=float32"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = read_json_lines(folder / "out/metrics.jsonl");
  ASSERT_EQ(lines.size(), 5u);
  for (const char* name : {"step",
                           "epoch",
                           "loss",
                           "grad_norm",
                           "learning_rate",
                           "num_tokens",
                           "num_supervised_tokens",
                           "tokens_per_second",
                           "step_time",
                           "mean_token_accuracy",
                           "entropy",
                           "memory/max_alloc",
                           "memory/host_rss",
                           "mfu",
                           "eta",
                           "router/aux_loss",
                           "router/load_max_over_mean",
                           "router/entropy",
                           "router/dead_experts",
                           "router/dropped_tokens",
                           "data/packing_efficiency",
                           "data/dropped_samples",
                           "step_time_sec",
                           "avg_step_time_sec",
                           "time_to_completion_sec",
                           "estimated_total_time_sec",
                           "step_peak_memory_allocated_MB",
                           "step_peak_memory_reserved_MB",
                           "total_peak_memory_allocated_MB",
                           "total_peak_memory_reserved_MB",
                           "step_tokens_per_second",
                           "avg_tokens_per_second"}) {
    ASSERT_TRUE(lines[3].contains(name)) << name;
    EXPECT_TRUE(lines[3][name].is_number()) << name;
  }
  for (const char* name : {"eval_loss", "eval_perplexity", "eval_mean_token_accuracy"}) {
    EXPECT_TRUE(lines[4].contains(name)) << name;
  }
  // The first two steps warm up; then the names agree with the canonical ones, MB being 2^20 bytes.
  EXPECT_FALSE(lines[1].contains("step_time_sec"));
  const Json& third = lines[2];
  const auto number = [&](const char* name) { return third[name].get<double>(); };
  EXPECT_DOUBLE_EQ(number("step_time_sec"), number("step_time"));
  EXPECT_DOUBLE_EQ(number("step_peak_memory_reserved_MB"), number("memory/max_alloc") / (1 << 20));
  EXPECT_NEAR(number("step_tokens_per_second"), number("tokens_per_second"), 1e-6 * number("tokens_per_second"));
  EXPECT_GT(number("step_peak_memory_allocated_MB"), 0);
  EXPECT_GT(number("mfu"), 0);
  EXPECT_LT(number("mfu"), 2);  // of a rate measured on a machine with other work
  const Json state = Json::parse(read_file(folder / "out/trainer_state.json"));
  ASSERT_EQ(state["log_history"].size(), 5u);
  EXPECT_EQ(state["log_history"][3], lines[3]);
}

}  // namespace
}  // namespace hone
