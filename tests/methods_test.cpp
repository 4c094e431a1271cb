// Tests of methods (additions to a model's forward pass and loss) and optimizers: complete runs through the command
// line with a tiny model.
#include <cmath>
#include <map>

#include "device_main.h"
#include "program.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

struct Methods : ::testing::Test {
  Folder folder;
  std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  int runs = 0;

  /// Runs a training that must succeed; returns its output folder.
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

/// Four samples per step give the same loss and gradient in one or several micro-batches: noise depends on sample and
/// position, and the z-loss is a mean over all tokens of the step.
TEST_F(Methods, DoNotDependOnHowAStepIsSplit) {
  std::vector<Json> steps;
  for (const auto& [micro, accumulation] : {std::pair{4, 1}, {2, 2}, {1, 4}}) {
    std::vector<std::string> options = all_methods();
    options.insert(options.end(),
                   {"router_aux_loss_coef=0", "packing=false"});  // fractions are computed per micro-batch
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

// Optimizers: complete runs through the command line with a tiny model.

using Options = std::vector<std::string>;

Options operator+(Options a, const Options& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::map<std::string, Options> optimizers() {
  std::map<std::string, Options> all = {
      {"adafactor", {"optim=adafactor"}},
      {"adafactor with all",
       {"optim=adafactor", "optim_args=beta1=0.9,scale_parameter=true", "learning_rate=6e-2", "weight_decay=0.01"}},
      {"lion", {"optim=lion", "learning_rate=2e-3", "weight_decay=0.01"}},
      {"sgd", {"optim=sgd", "learning_rate=0.5"}},
      {"sgd with momentum", {"optim=sgd", "optim_args={momentum: 0.9, nesterov: true}", "learning_rate=0.1"}},
      {"muon", {"optim=muon", "learning_rate=1e-2", "weight_decay=0.01"}},
      {"muon as adamw", {"optim=muon", "optim_args=adjust_lr_fn=match_rms_adamw,momentum=0.9", "learning_rate=3e-3"}},
  };
  if (test_run().device != "cpu") std::erase_if(all, [](const auto& one) { return one.first.starts_with("muon"); });
  return all;
}

struct Optimizers : ::testing::Test {
  Folder folder;
  std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));

  Outcome train(const std::string& output, const Options& more) {
    return run_hone(train_arguments(model, data, folder / output, more));
  }
  void expect_same(const std::string& a, const std::string& b, const std::string& file) {
    EXPECT_TRUE(read_file(folder / a / file) == read_file(folder / b / file)) << a << ", " << b << ": " << file;
  }
};

TEST_F(Optimizers, Learn) {
  for (const auto& [name, options] : optimizers()) {
    const Outcome outcome = train(name, options + Options{"num_train_epochs=8"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<Json> steps = read_json_lines(folder / name / "metrics.jsonl");
    EXPECT_LT(steps.back()["loss"].get<double>(), 0.7 * steps.front()["loss"].get<double>()) << name;
  }
}

TEST_F(Optimizers, ResumeToTheSameBits) {
  const Options narrow = {"master_dtype=bfloat16", "grad_dtype=bfloat16"};
  for (const auto& [name, options] : optimizers()) {
    const bool has_m = name != "adafactor" && name != "sgd";
    for (const bool bits : {false, true}) {
      SCOPED_TRACE(name + (bits ? ", bfloat16" : ""));
      Options all = options + Options{"save_steps=3"};
      if (bits) all = all + narrow;
      if (bits && has_m) all.push_back("opt_m_dtype=bfloat16");
      const std::string whole = name + " whole" + std::to_string(bits), parts = name + " parts" + std::to_string(bits);
      ASSERT_EQ(train(whole, all + Options{"max_steps=6"}).code, 0);
      ASSERT_EQ(train(parts, all + Options{"max_steps=3"}).code, 0);
      const Outcome resumed = train(parts, all + Options{"max_steps=6", "resume=auto"});
      ASSERT_EQ(resumed.code, 0) << resumed.err;
      expect_same(whole, parts, "model.safetensors");
      expect_same(whole, parts, "checkpoint-6/training_state.safetensors");
    }
  }
}

TEST_F(Optimizers, StepInBackwardAsAfterIt) {
  for (const auto& [name, options] : optimizers()) {
    const Options all = options + Options{"max_steps=4", "gradient_accumulation_steps=1", "max_grad_norm=0"};
    ASSERT_EQ(train(name + " after", all).code, 0);
    const Outcome within = train(name + " within", all + Options{"optimizer_in_backward=true"});
    ASSERT_EQ(within.code, 0) << within.err;
    expect_same(name + " after", name + " within", "model.safetensors");
  }
}

TEST_F(Optimizers, BLearnsAtItsOwnRate) {
  // After one step from the same adapter, B with the rate 4 x equals B with ratio 4 and rate x; A ignores the ratio.
  std::map<std::string, Options> all = optimizers();
  all["adamw"] = {"optim=adamw", "weight_decay=0.01"};
  for (const auto& [name, options] : all) {
    SCOPED_TRACE(name);
    const auto step = [&](const std::string& rate, const std::string& ratio) {
      const std::string output = name + rate + "x" + ratio;
      const Outcome outcome = train(output, options + Options{"finetuning_type=lora", "lora_init=false", "max_steps=1",
                                                              "learning_rate=" + rate, "loraplus_lr_ratio=" + ratio});
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      return SafetensorsFile(folder / output / "adapter_model.safetensors");
    };
    const SafetensorsFile plain = step("0.03125", "1"), fast = step("0.125", "1"), plus = step("0.03125", "4");
    int moved = 0;
    for (const SafetensorsEntry& entry : plus.entries()) {
      const bool is_b = entry.name.find("lora_B") != std::string::npos;
      EXPECT_EQ(plus.read_floats(entry.name), (is_b ? fast : plain).read_floats(entry.name)) << entry.name;
      moved += plain.read_floats(entry.name) != fast.read_floats(entry.name);
    }
    EXPECT_GT(moved, 0);
  }
}

TEST_F(Optimizers, TrainAdapters) {
  for (const auto& [name, options] : optimizers()) {
    const Outcome outcome =
        train(name, options + Options{"finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention,all-experts]",
                                      "max_steps=3"});
    EXPECT_EQ(outcome.code, 0) << name << outcome.err;
    EXPECT_TRUE(fs::exists(folder / name / "adapter_model.safetensors")) << name;
  }
}

TEST_F(Optimizers, AnotherOneCannotGoOn) {
  ASSERT_EQ(train("out", {"max_steps=2", "save_steps=2"}).code, 0);
  for (const char* optim : {"optim=lion", "optim=sgd", "optim=adafactor"}) {
    const Outcome outcome = train("out", {"max_steps=4", "resume=auto", optim});
    EXPECT_EQ(outcome.code, 2) << optim;
    EXPECT_NE(outcome.err.find("the training state has"), std::string::npos) << outcome.err;
  }
}

TEST_F(Optimizers, SayWhatTheyKeep) {
  const std::map<std::string, std::string> texts = {{"adafactor", "Adafactor, float32 factors"},
                                                    {"lion", "Lion, float32 moments"},
                                                    {"sgd with momentum", "SGD, float32 momentum"},
                                                    {"muon", "Muon, float32 momentum; AdamW, float32 moments"}};
  for (const auto& [name, options] : optimizers()) {
    const auto text = texts.find(name);
    if (text == texts.end()) continue;
    const Outcome outcome = train(name, options + Options{"max_steps=1", "--verbose"});
    EXPECT_NE(outcome.out.find(text->second), std::string::npos) << outcome.out;
  }
}

TEST_F(Optimizers, RelativeStepMakesTheRate) {
  Options arguments = train_arguments(model, data, folder / "out",
                                      {"max_steps=3", "optim=adafactor", "dtype=float32",
                                       "optim_args=scale_parameter=true,relative_step=true,warmup_init=true"});
  std::erase(arguments, "learning_rate=3e-3");
  const Outcome outcome = run_hone(arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> steps = read_json_lines(folder / "out/metrics.jsonl");
  for (size_t t = 0; t < steps.size(); ++t) {
    EXPECT_NEAR(steps[t]["learning_rate"].get<double>(), 1e-6 * static_cast<double>(t + 1), 1e-12);
  }
}

}  // namespace
}  // namespace hone
