// What runs may add to a model's forward pass and loss: whole runs through the command line on a tiny model.
#include <cmath>

#include "device_main.h"
#include "program.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

struct Methods : ::testing::Test {
  Folder folder;
  std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  int runs = 0;

  /// The output folder of a run that went well.
  fs::path train(const std::vector<std::string>& more) {
    const fs::path output = folder / ("run" + std::to_string(runs++));
    const Outcome outcome = run_hone(train_arguments(model, data, output, more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return output;
  }
  std::vector<Json> metrics(const std::vector<std::string>& more) {
    return read_json_lines(train(more) / "metrics.jsonl");
  }
  Json first_step(const std::vector<std::string>& more) {
    std::vector<std::string> options = {"max_steps=1", "dtype=float32"};
    options.insert(options.end(), more.begin(), more.end());
    return metrics(options).front();
  }
};

std::vector<std::string> all_methods() {
  return {"label_smoothing_factor=0.1", "neftune_noise_alpha=5", "router_z_loss_coef=0.01", "router_jitter_noise=0.05"};
}

TEST_F(Methods, LabelSmoothingIsLinearInItsFactorAndLeavesEvaluationAlone) {
  std::vector<double> losses, evaluations;
  for (const char* factor : {"0", "0.1", "0.2"}) {
    const std::vector<Json> lines = metrics({std::string("label_smoothing_factor=") + factor, "max_steps=1",
                                             "dtype=float32", "learning_rate=0", "val_split=4", "eval_on_start=true"});
    evaluations.push_back(lines.front()["eval_loss"]);
    losses.push_back(lines[1]["loss"]);
  }
  EXPECT_GT(std::abs(losses[1] - losses[0]), 1e-4);
  EXPECT_NEAR(losses[2] - losses[0], 2 * (losses[1] - losses[0]), 1e-5);
  EXPECT_EQ(evaluations[1], evaluations[0]);
  EXPECT_EQ(evaluations[2], evaluations[0]);
}

TEST_F(Methods, TheZLossIsMeasuredInAnyCaseAndCountsByItsCoefficient) {
  const Json without = first_step({}), with = first_step({"router_z_loss_coef=0.5"});
  const double z = without["router/z_loss"];
  EXPECT_GT(z, 0);
  EXPECT_EQ(with["router/z_loss"].get<double>(), z);
  EXPECT_EQ(with["loss"], without["loss"]);
  EXPECT_NEAR(with["loss_with_aux"].get<double>() - without["loss_with_aux"].get<double>(), 0.5 * z, 1e-6);
  EXPECT_NE(with["grad_norm"], without["grad_norm"]);
  const std::vector<Json> steps = metrics({"router_z_loss_coef=1", "max_steps=30", "dtype=float32"});
  EXPECT_LT(steps.back()["router/z_loss"].get<double>(), 0.9 * z) << "logits of a router become small";
}

/// Four samples a step, in one micro-batch or in several: one loss, one gradient. Noise is drawn by sample and
/// position, and the z-loss is a mean over all tokens of the step.
TEST_F(Methods, DoNotDependOnHowAStepIsSplit) {
  std::vector<Json> steps;
  for (const auto& [micro, accumulation] : {std::pair{4, 1}, {2, 2}, {1, 4}}) {
    std::vector<std::string> options = all_methods();
    options.insert(options.end(), {"router_aux_loss_coef=0", "packing=false"});  // fractions are a micro-batch's
    options.push_back("per_device_train_batch_size=" + std::to_string(micro));
    options.push_back("gradient_accumulation_steps=" + std::to_string(accumulation));
    steps.push_back(first_step(options));
  }
  for (const char* key : {"loss", "loss_with_aux", "grad_norm", "router/z_loss"}) {
    const double want = steps[0][key];
    for (const Json& step : steps) EXPECT_NEAR(step[key].get<double>(), want, 2e-5 * want) << key;
  }
}

TEST_F(Methods, EachChangesTheGradientAndNoneChangesWithRecomputation) {
  const Json plain = first_step({});
  for (const std::string& method : all_methods()) EXPECT_NE(first_step({method})["grad_norm"], plain["grad_norm"]);
  std::vector<std::string> keep = all_methods(), recompute = all_methods();
  keep.insert(keep.end(), {"max_steps=3", "gradient_checkpointing=false"});
  recompute.insert(recompute.end(), {"max_steps=3", "gradient_checkpointing=true"});
  EXPECT_TRUE(read_file(train(keep) / "model.safetensors") == read_file(train(recompute) / "model.safetensors"));
}

TEST_F(Methods, ResumingGivesTheSameBits) {
  std::vector<std::string> whole = all_methods(), half = whole;
  whole.insert(whole.end(), {"max_steps=6", "save_steps=3"});
  half.insert(half.end(), {"max_steps=3", "save_steps=3"});
  const fs::path output = train(half), other = train(whole);
  whole.push_back("resume=auto");
  const Outcome resumed = run_hone(train_arguments(model, data, output, whole));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(read_file(output / "model.safetensors") == read_file(other / "model.safetensors"));
}

TEST_F(Methods, OfRoutersAreRefusedForAModelWithoutThem) {
  Json config = tiny_config();
  config["architectures"] = {"Qwen3ForCausalLM"};
  config["model_type"] = "qwen3";
  const Folder dense;
  const std::string dense_model = make_model(dense, config);
  for (const std::string key : {"router_z_loss_coef", "router_jitter_noise"}) {
    const Outcome outcome = run_hone(train_arguments(dense_model, data, dense / "out", {key + "=0.1"}));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find(key + " is 0.1, but the model has no routers"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace hone
