// Packed bases through the command line: training, resuming, evaluation, generation, merging, and export to quantised
// files.
#include <cmath>

#include "device_main.h"
#include "program.h"
#include "weights/safetensors.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

class PackedBase : public ::testing::Test {
 protected:
  PackedBase() : model_(make_model(folder_, tiny_config())), data_(folder_.write("data.jsonl", progressions(40))) {}

  Outcome train(const std::string& model, const std::string& output, std::vector<std::string> more) const {
    more.insert(more.begin(), {"finetuning_type=lora", "lora_r=4", "lora_target_modules=[attention,all-experts]"});
    return run_hone(train_arguments(model, data_, folder_ / output, more));
  }
  static std::string done(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }
  double eval_loss(const std::string& model, const std::string& base, const std::string& adapter = "") const {
    std::vector<std::string> arguments = {"eval",          "model=" + model, "datasets=" + data_,
                                          "max_length=64", "--json",         "device=" + test_run().device,
                                          "dtype=float32"};
    // What is packed is frozen: adapters are beside it.
    if (!base.empty()) arguments.insert(arguments.end(), {"base_weight_dtype=" + base, "finetuning_type=lora"});
    if (!adapter.empty()) arguments.insert(arguments.end(), {"--checkpoint", (folder_ / adapter).string()});
    const std::string printed = done(run_hone(arguments));
    return printed.empty() ? NAN : Json::parse(printed)["eval_loss"].get<double>();
  }
  void expect_refused(const Outcome& outcome, const std::string& reason) const {
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
  }

  Folder folder_;
  std::string model_, data_;
};

TEST_F(PackedBase, AStoppedRunGoesOnToTheSameBits) {
  for (const std::string base : {"nf4", "fp8"}) {
    const auto with = [&](std::vector<std::string> options) {
      options.insert(options.end(), {"base_weight_dtype=" + base, "lora_dropout=0.1", "save_steps=3"});
      return options;
    };
    done(train(model_, base + "-whole", with({"max_steps=6"})));
    done(train(model_, base + "-parts", with({"max_steps=3"})));
    done(train(model_, base + "-parts", with({"max_steps=6", "resume=auto"})));
    EXPECT_TRUE(read_file(folder_ / (base + "-whole") / "adapter_model.safetensors") ==
                read_file(folder_ / (base + "-parts") / "adapter_model.safetensors"))
        << base;
  }
}

TEST_F(PackedBase, MergedIntoTheRoundedBaseAnAdapterHasTheLossOfItsRun) {
  done(train(model_, "run", {"max_steps=8", "learning_rate=1e-2", "base_weight_dtype=nf4", "dtype=float32"}));
  const double trained = eval_loss(model_, "nf4", "run");
  const auto merge = [&](const std::string& output, std::vector<std::string> more) {
    more.insert(more.begin(), {"merge", "--model", model_, "--adapter", (folder_ / "run").string(), "--output",
                               (folder_ / output).string()});
    return done(run_hone(more));
  };
  const std::string said = merge("rounded", {"--base-weight-dtype", "nf4", "--compare-logits"});
  EXPECT_NE(said.find("rounded to nf4, which moves them by"), std::string::npos) << said;
  EXPECT_NE(said.find("on a base of nf4"), std::string::npos) << said;
  merge("exact", {});
  EXPECT_NEAR(eval_loss((folder_ / "rounded").string(), ""), trained, 1e-5);
  EXPECT_GT(std::abs(eval_loss((folder_ / "exact").string(), "") - trained), 1e-5);
}

TEST_F(PackedBase, ExportedInFp8BlocksAModelIsReadAgainAndKept) {
  done(train(model_, "run", {"max_steps=4", "learning_rate=1e-2"}));
  const std::string said = done(run_hone(
      {"export", (folder_ / "run").string(), (folder_ / "fp8").string(), "--model", model_, "--weights", "fp8"}));
  EXPECT_NE(said.find("tensors rounded to fp8"), std::string::npos) << said;
  const Json rounding = Json::parse(read_file(folder_ / "fp8/hone_rounding.json"));
  EXPECT_GT(rounding["error"].size(), 10u);
  for (const auto& [name, error] : rounding["error"].items()) {
    EXPECT_GT(error.get<double>(), 0.001) << name;
    EXPECT_LT(error.get<double>(), 0.05) << name;
  }
  const Json config = Json::parse(read_file(folder_ / "fp8/config.json"));
  EXPECT_EQ(config["quantization_config"]["quant_method"], "fp8");
  for (const auto& entry : fs::directory_iterator(folder_ / ".")) {
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }
  const std::string quantised = (folder_ / "fp8").string();
  const double dequantised = eval_loss(quantised, "");
  EXPECT_NEAR(eval_loss(quantised, "auto"), dequantised, 1e-6);
  done(train(quantised, "again", {"max_steps=2", "base_weight_dtype=auto"}));
  expect_refused(run_hone({"export", quantised, (folder_ / "twice").string(), "--weights", "fp8"}),
                 "quantised already");
  expect_refused(run_hone({"export", model_, (folder_ / "fp4").string(), "--weights", "mxfp4"}), "gpt-oss");
  expect_refused(run_hone({"export", model_, (folder_ / "fp4").string(), "--weights", "fp4"}), "fp4");
  EXPECT_FALSE(fs::exists(folder_ / "fp4"));
}

}  // namespace
}  // namespace hone
