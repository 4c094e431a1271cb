// Packed bases through the command line: training, resuming, evaluation, generation, merging, and export to quantised
// files.
#include <cmath>

#include "core/memory/buffer.h"
#include "device_main.h"
#include "formats/packed_weights.h"
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

/// tiny_config() has sizes of 16 and 32, fewer than a block of 128.
TEST_F(PackedBase, ProductsInFp8LearnAsInBfloat16Does) {
  const auto losses = [&](const std::string& output) {
    const Json state = Json::parse(read_file(folder_ / output / "trainer_state.json"));
    std::vector<double> values;
    for (const Json& row : state["log_history"]) {
      if (row.contains("loss")) values.push_back(row["loss"].get<double>());
    }
    return values;
  };
  const std::vector<std::string> usual = {"max_steps=6", "learning_rate=1e-2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), usual.begin(), usual.end());
    return more;
  };
  const Outcome plain = train(model_, "plain", with({}));
  done(plain);
  const std::vector<double> expected = losses("plain");
  ASSERT_EQ(expected.size(), 6u);
  ASSERT_LT(expected.back(), 0.98 * expected.front());
  const std::vector<std::vector<std::string>> runs = {{"fp8=tensorwise"},
                                                      {"fp8=rowwise"},
                                                      {"fp8=blockwise"},
                                                      {"fp8=rowwise", "base_weight_dtype=fp8_rows"},
                                                      {"fp8=blockwise", "base_weight_dtype=fp8"},
                                                      {"fp8=rowwise", "fp8_keep=['re:mlp']"}};
  for (const std::vector<std::string>& run : runs) {
    SCOPED_TRACE(::testing::PrintToString(run));
    done(train(model_, "fp8", with(run)));
    const std::vector<double> got = losses("fp8");
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_NE(got, expected);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 0.05 * expected[i]) << i;
    fs::remove_all(folder_ / "fp8");
  }
  expect_refused(train(model_, "none", with({"fp8=rowwise", "fp8_keep=['re:.*']"})),
                 "no matrix of a layer is multiplied");
  expect_refused(train(model_, "none", with({"fp8=rowwise", "fp8_keep=['re:nowhere']"})), "fp8_keep");
  const Outcome noted = train(model_, "noted", with({"fp8_keep=['re:mlp']"}));
  EXPECT_NE((noted.out + noted.err).find("fp8_keep has no effect: fp8 is off"), std::string::npos) << noted.err;
}

TEST_F(PackedBase, ATrainedWeightsGradientIsInFp8OrNot) {
  std::vector<std::string> models;
  for (const std::string fp8 : {"off", "rowwise_with_gw_hp", "rowwise"}) {
    const fs::path output = folder_ / fp8;
    done(run_hone(train_arguments(model_, data_, output,
                                  {"max_steps=4", "learning_rate=1e-3", "grad_dtype=float32", "fp8=" + fp8})));
    models.push_back(read_file(output / "model.safetensors"));
  }
  EXPECT_FALSE(models[0] == models[1]);
  EXPECT_FALSE(models[1] == models[2]);
}

TEST_F(PackedBase, EvaluatesInTheFp8OfARun) {
  const auto loss = [&](const std::string& fp8) {
    const std::string printed = done(run_hone({"eval", "model=" + model_, "datasets=" + data_, "max_length=64",
                                               "--json", "device=" + test_run().device, "fp8=" + fp8}));
    return Json::parse(printed)["eval_loss"].get<double>();
  };
  const double plain = loss("off"), rounded = loss("rowwise");
  EXPECT_NE(rounded, plain);
  EXPECT_NEAR(rounded, plain, 0.01 * plain);
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

/// The names and formats in which MiniMax-M2 is published: experts and attention in FP8 blocks, the router as it is.
TEST_F(PackedBase, MiniMaxM2IsReadInTheBlocksInWhichItIsPublishedAndKept) {
  const Folder folder;
  Json config = tiny_config();
  for (const char* other : {"moe_intermediate_size", "num_experts", "norm_topk_prob"}) config.erase(other);
  config.update(Json{{"architectures", {"MiniMaxM2ForCausalLM"}},
                     {"model_type", "minimax_m2"},
                     {"intermediate_size", 16},
                     {"num_local_experts", 4},
                     {"rotary_dim", 4}});
  const std::string model = make_model(folder, config), blocks = (folder / "fp8").string();
  done(run_hone({"export", model, blocks, "--weights", "fp8"}));
  const SafetensorsFile file(fs::path(blocks) / "model.safetensors");
  const std::string layer = "model.layers.0.", sparse = layer + "block_sparse_moe.", scale = ".weight_scale_inv";
  for (const std::string& name : {sparse + "experts.3.w1", sparse + "experts.3.w2", layer + "self_attn.q_proj"}) {
    EXPECT_NE(file.find(name + scale), nullptr) << name;
  }
  for (const std::string& name : {sparse + "gate", std::string("lm_head"), layer + "self_attn.q_norm"}) {
    ASSERT_NE(file.find(name + ".weight"), nullptr) << name;
    EXPECT_EQ(file.find(name + scale), nullptr) << name;
  }
  EXPECT_NE(file.find(sparse + "e_score_correction_bias"), nullptr);
  EXPECT_NEAR(eval_loss(blocks, "auto"), eval_loss(blocks, ""), 1e-6);
  EXPECT_NEAR(eval_loss(blocks, ""), eval_loss(model, ""), 0.05);
  done(train(blocks, "kept", {"max_steps=2", "base_weight_dtype=auto"}));
}

/// A copy of a tiny model that computes the same, whose attention rounding hurts, and whose experts lose nothing if
/// they are packed in `format`: they are as it rounds them. Every other element of a head's values is 64 times as
/// large, and is divided by 64 again in the output projection, where it is rounded beside elements of the usual size.
std::string copy_hurt_by_rounding(const std::string& model, const PackedFormat& format) {
  constexpr int64_t kHeadDim = 8;
  const fs::path copy = model + "_hurt";
  fs::copy(model, copy, fs::copy_options::recursive);
  const SafetensorsFile file(fs::path(model) / "model.safetensors");
  std::vector<SafetensorsWriter::Announced> announced;
  for (const SafetensorsEntry& entry : file.entries()) announced.push_back({entry.name, DType::kF32, entry.shape});
  SafetensorsWriter writer(copy / "model.safetensors", announced);
  for (const SafetensorsWriter::Announced& tensor : announced) {
    std::vector<float> values = file.read_floats(tensor.name);
    const int64_t columns = tensor.shape.back();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if (contains(tensor.name, "v_proj") && i / columns % kHeadDim % 2 == 1) values[static_cast<size_t>(i)] *= 64;
      if (contains(tensor.name, "o_proj") && i % columns % kHeadDim % 2 == 1) values[static_cast<size_t>(i)] /= 64;
    }
    if (contains(tensor.name, ".experts.")) {
      const PackedLayout layout = format.layout(tensor.shape[0], columns);
      Buffer chunk(Device{}, static_cast<size_t>(layout.bytes));
      format.pack(layout, values.data(), chunk.data());
      unpack(layout, chunk.data(), 0, layout.elements(), values.data());
    }
    writer.write(values.data(), values.size() * sizeof(float));
  }
  writer.finish();
  return copy.string();
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(PackedBase, ARunSaysWhatPackingCostsAndADryRunWhichWeightsHurt) {
  done(run_hone(
      train_arguments(model_, data_, folder_ / "tuned", {"max_steps=150", "learning_rate=1e-2", "dtype=float32"})));
  const std::string model = copy_hurt_by_rounding((folder_ / "tuned").string(), nf4_float_scales_format());
  const std::vector<std::string> options = {"base_weight_dtype=nf4_float_scales", "dtype=float32", "max_steps=2",
                                            "per_device_train_batch_size=40", "gradient_accumulation_steps=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), options.begin(), options.end());
    return more;
  };
  done(train(model, "run", with({})));
  const std::string log = read_file(folder_ / "run/run.log");
  EXPECT_EQ(count_of(log, "first batch: loss "), 1) << log;
  EXPECT_TRUE(contains(log, "more than 2 %: base_weight_dtype: int8 or fp8 loses little")) << log;
  EXPECT_FALSE(contains(log, "first batch: with")) << "a run does not measure groups";
  const Json cost = Json::parse(read_file(folder_ / "run/training_info.json"))["first_batch"];
  EXPECT_EQ(cost["formats"], "nf4_float_scales");
  EXPECT_NEAR(cost["loss_packed_base"].get<double>(), eval_loss(model, "nf4_float_scales"), 1e-5);
  EXPECT_NEAR(cost["loss_dense_base"].get<double>(), eval_loss(model, ""), 1e-5);

  done(train(model, "run", with({"max_steps=3", "resume=auto"})));
  EXPECT_EQ(count_of(read_file(folder_ / "run/run.log"), "first batch:"), 1) << "a resumed run measures nothing";
  EXPECT_TRUE(Json::parse(read_file(folder_ / "run/training_info.json"))["first_batch"].is_null());

  const Outcome tried = train(model, "dry", with({"--dry-run"}));
  EXPECT_EQ(tried.code, 0) << tried.err;
  const std::string said = tried.out + tried.err;
  const size_t attention = said.find(R"(first batch: with base_weight_keep: ['re:\.self_attn\.[^.]+$']   loss +0.0 %)");
  EXPECT_NE(attention, std::string::npos) << said;
  EXPECT_EQ(said.find("first batch: with"), attention) << "what hurts most comes first\n" << said;
  EXPECT_FALSE(contains(said, R"(re:\.mlp)")) << "experts lose nothing\n" << said;
  EXPECT_FALSE(fs::exists(folder_ / "dry"));

  done(train(model, "kept", with({R"(base_weight_keep=['re:\.self_attn\.[^.]+$'])"})));
  EXPECT_TRUE(contains(read_file(folder_ / "kept/run.log"), "the same on the dense one: packing it loses nothing"));
  done(train(model, "stored", {"base_weight_dtype=auto", "max_steps=1"}));
  EXPECT_FALSE(contains(read_file(folder_ / "stored/run.log"), "first batch")) << "no weight is packed";
}

TEST_F(PackedBase, RanksMeasureTheSameCost) {
  if (test_run().device != "cpu") GTEST_SKIP() << "two ranks take two GPUs";
  const auto cost = [&](const std::string& output, std::vector<std::string> words, const std::string& stage) {
    const std::vector<std::string> arguments =
        train_arguments(model_, data_, folder_ / output,
                        {"finetuning_type=lora", "lora_r=4", "gradient_accumulation_steps=2", "base_weight_dtype=nf4",
                         "dtype=float32", "max_steps=1", "zero_stage=" + stage});
    words.insert(words.end(), arguments.begin(), arguments.end());
    done(run_hone(words));
    return Json::parse(read_file(folder_ / output / "training_info.json"))["first_batch"]["loss_packed_base"]
        .get<double>();
  };
  const double alone = cost("alone", {}, "0");
  for (const char* stage : {"0", "3"}) {
    EXPECT_NEAR(cost(std::string("ranks") + stage, {"launch", "-n", "2", "--"}, stage), alone, 1e-5) << stage;
  }
}

}  // namespace
}  // namespace hone
