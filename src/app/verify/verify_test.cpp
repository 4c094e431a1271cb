#include "app/verify/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "app/verify/verify_testing.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

TEST_F(PlantedCase, EveryRowOfTheCaseHolds) {
  const VerifyReport report = verify_case(options());
  EXPECT_TRUE(report.ok()) << report_table(report);
  EXPECT_EQ(report.checks.size(), 39u) << report_table(report);
}

TEST_F(PlantedCase, OneWrongLogitIsNoticed) {
  const auto logits = read_host_tensors(path("logits.safetensors")).at("logits").values;
  double largest = 0;
  for (float v : logits) largest = std::max(largest, std::abs(static_cast<double>(v)));
  add("logits.safetensors", "logits", 12345, 10 * 2e-5 * largest);
  EXPECT_THAT(verify_failures(), ::testing::ElementsAre("logits"));
}

TEST_F(PlantedCase, OneWrongGradientIsNoticedInEveryFileOfGradients) {
  const std::string large = "lm_head.weight", small = "model.layers.0.self_attn.q_norm.weight";
  const auto plant = [&](const std::string& file, const std::string& tensor, int64_t element,
                         const std::string& part = "") {
    add(file, tensor + part, element, ten_gradient_bounds(file, tensor));
  };
  plant("grads.safetensors", large, 7, ".sketch");
  plant("packed_grads.safetensors", small, 3);
  plant("accumulation_grads.safetensors", "model.layers.1.mlp.experts.down_proj", 5, ".row_norms");
  const std::string adapter = "base_model.model.model.layers.0.mlp.experts.3.up_proj.lora_B.weight";
  plant("split_adapter/expected.safetensors", adapter, 9);
  EXPECT_THAT(verify_failures(), ::testing::ElementsAre("gradients", "documents packed, gradients",
                                                        "accumulation, gradients", "split adapter, gradients"));
}

TEST_F(PlantedCase, AGradientThatIsZeroInTheCaseMustBeZero) {
  // The case's expert becomes one without tokens, so that the computed gradient is wrong.
  const std::string norms = "model.layers.0.mlp.experts.gate_up_proj.row_norms";
  const HostTensors gradients = read_host_tensors(path("grads.safetensors"));
  add("grads.safetensors", norms, 0, -static_cast<double>(gradients.at(norms).values[0]));
  EXPECT_THAT(verify_failures(), ::testing::ElementsAre("gradients", "gradients, zeros"));
}

TEST_F(PlantedCase, OneWrongFinalWeightIsNoticedInEveryRun) {
  const std::string weight = "model.layers.1.input_layernorm.weight";
  const HostTensor change = read_host_tensors(path("full_change.safetensors")).at(weight);
  add("full_change.safetensors", weight, 40, 10 * 2e-2 * norm(change));
  const std::string dense = "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight";
  const std::string experts = "base_model.model.model.layers.1.mlp.experts.base_layer.lora_A.weight";
  const auto plant = [&](const std::string& run, const std::string& tensor, double bound) {
    add(run + "_final/adapter_model.safetensors", tensor, 11, ten_change_bounds(run, tensor, bound));
  };
  plant("lora_attention", dense, 2e-3);
  plant("lora_experts", experts, 2e-2);
  EXPECT_THAT(verify_failures(),
              ::testing::IsSupersetOf({"full, change of weights, tensors", "lora_attention, change of weights, tensors",
                                       "lora_experts, change of weights, tensors"}));
}

TEST_F(PlantedCase, EveryNumberOfExpectedJsonIsHeld) {
  const auto grow = [](Json& number, double bound) { number = number.get<double>() * (1 + 10 * bound); };
  edit([&](Json& json) {
    grow(json["loss"], 1e-5);
    grow(json["aux_loss"], 1e-5);
    Json& token_loss = json["documents"]["token_losses"][2][13];
    token_loss = token_loss.get<double>() + 10 * 1e-4;
    grow(json["accumulation"]["loss"], 1e-5);
    grow(json["accumulation"]["grad_norm"], 1e-4);
    json["accumulation"]["supervised_tokens"] = json["accumulation"]["supervised_tokens"].get<int>() + 1;
    json["greedy"]["tokens"][23] = json["greedy"]["tokens"][23].get<int>() + 1;
    for (const char* run : {"full", "lora_attention", "lora_experts"}) {
      const bool full = run == std::string("full");
      grow(json[run]["steps"][19]["loss"], full ? 5e-5 : 2e-5);
      grow(json[run]["steps"][7]["aux_loss"], full ? 5e-5 : 2e-5);
      grow(json[run]["steps"][0]["grad_norm"], full ? 5e-4 : 2e-4);
    }
  });
  EXPECT_THAT(
      verify_failures(),
      ::testing::ElementsAre("loss", "aux loss", "documents alone, token losses", "documents packed, token losses",
                             "accumulation, supervised tokens", "accumulation, loss", "accumulation, grad norm",
                             "greedy tokens", "full, loss", "full, aux loss", "full, grad norm", "lora_attention, loss",
                             "lora_attention, aux loss", "lora_attention, grad norm", "lora_experts, loss",
                             "lora_experts, aux loss", "lora_experts, grad norm"));
}

TEST_F(PlantedCase, AWrongTokenOfAnInputIsNoticed) {
  edit([](Json& json) {
    json["documents"]["input_ids"][1][4] = json["documents"]["input_ids"][1][4].get<int>() + 1;
    json["greedy"]["prompt"][3] = json["greedy"]["prompt"][3].get<int>() + 1;
  });
  EXPECT_THAT(verify_failures(), ::testing::IsSupersetOf({"documents alone, token losses",
                                                          "documents packed, gradients", "greedy, prompt is batch 0"}));
}

/// The rows that compare bits, by name: the numbers that differ.
std::map<std::string, double> differing_bits(const VerifyReport& report) {
  std::map<std::string, double> rows;
  for (const Check& check : report.checks) {
    if (check.name.ends_with(", bits")) rows[check.name] = check.error;
  }
  return rows;
}

TEST_F(PlantedCase, RanksAndHostMemoryKeepEveryBit) {
  const std::map<std::string, double> none = {
      {"full, bits", 0}, {"lora_attention, bits", 0}, {"lora_experts, bits", 0}};
  VerifyOptions offloaded = options();
  offloaded.keys = {"cpu_offload=optimizer,params,activations"};
  const VerifyReport alone = verify_case(offloaded);
  EXPECT_TRUE(alone.ok()) << report_table(alone);
  EXPECT_EQ(differing_bits(alone), none);
  VerifyOptions ranks = offloaded;
  ranks.ranks = 2;
  ranks.keys.push_back("zero_stage=3");
  const VerifyReport together = verify_case(ranks);
  EXPECT_TRUE(together.ok()) << report_table(together);
  EXPECT_EQ(differing_bits(together), none);
  EXPECT_TRUE(differing_bits(verify_case(options())).empty());
  ranks.change_optimizer = [](ReferenceOptimizer& o) { o.adamw.beta1 = 0.9001; };
  for (const auto& [row, errors] : differing_bits(verify_case(ranks))) EXPECT_GT(errors, 5) << row;
}

TEST_F(PlantedCase, SharingNeedsSeveralRanks) {
  VerifyOptions sharded = options();
  sharded.keys = {"zero_stage=3"};
  EXPECT_THROW(verify_case(sharded), UserError);
  sharded = options();
  sharded.keys = {"cpu_offload=params", "dtype=bfloat16"};
  EXPECT_THROW(verify_case(sharded), UserError);
}

TEST(CompareCosines, TellDirectionsWhateverTheLengths) {
  const auto tensor = [](float x, float y) { return HostTensor{{2}, {x, y}}; };
  const HostTensors ours = {{"a", tensor(2, 0)}, {"b", tensor(0, 0)}, {"c", tensor(0, 1)}};
  const ReferenceTensors reference = {{"a", tensor(3, 3)}, {"b", tensor(0, 0)}, {"c", tensor(0, -2)}};
  const std::vector<Check> checks = compare_cosines("gradients", ours, reference, "file", 0.5);
  ASSERT_EQ(checks.size(), 3u);
  // Together (2, 0, 0, 1) and (3, 3, 0, -2): 4 / (√5 √22).
  EXPECT_NEAR(checks[0].error, 1 - 4 / std::sqrt(110.0), 1e-9);
  EXPECT_TRUE(checks[0].required && !checks[0].ok());
  EXPECT_NEAR(checks[1].error, 1 - std::sqrt(0.5), 1e-9);
  EXPECT_NEAR(checks[2].error, 2.0, 1e-9);
  EXPECT_EQ(checks[2].worst.front().name, "c");
}

TEST(VerifyFp8, ComparesGradientsThatAreNearAndNotThoseOfBfloat16) {
  for (const char* recipe : {"tensorwise", "rowwise", "blockwise"}) {
    VerifyOptions options;
    options.case_directory = kPlantedFrom;
    options.threads = 2;
    options.keys = {"dtype=bfloat16", std::string("fp8=") + recipe};
    const VerifyReport report = verify_case(options);
    ASSERT_EQ(report.checks.size(), 4u);
    EXPECT_EQ(report.checks[1].name, std::string("gradients in fp8 ") + recipe);
    EXPECT_GT(report.checks[1].error, 1e-4) << recipe;
    EXPECT_LT(report.checks[1].error, 0.1) << recipe;
  }
  VerifyOptions exact;
  exact.case_directory = kPlantedFrom;
  exact.keys = {"fp8=rowwise"};
  EXPECT_THROW(verify_case(exact), UserError);
}

/// Planted errors that a trainer could make.
class PlantedOptimizer : public ::testing::TestWithParam<std::pair<const char*, void (*)(ReferenceOptimizer&)>> {};

TEST_P(PlantedOptimizer, IsNoticed) {
  VerifyOptions options;
  options.case_directory = kPlantedFrom;
  options.threads = 1;
  options.change_optimizer = GetParam().second;
  EXPECT_THAT(failed_rows(verify_case(options)), ::testing::Contains("full, change of weights"));
}

INSTANTIATE_TEST_SUITE_P(
    Errors, PlantedOptimizer,
    ::testing::Values(std::pair{"NoDecay", +[](ReferenceOptimizer& o) { o.groups.weight_decay = 0; }},
                      std::pair{"DecayOfMatricesOnly",
                                +[](ReferenceOptimizer& o) { o.groups.decay_norms_and_biases = false; }},
                      std::pair{"WrongBeta1", +[](ReferenceOptimizer& o) { o.adamw.beta1 = 0.95; }},
                      std::pair{"WrongBeta2", +[](ReferenceOptimizer& o) { o.adamw.beta2 = 0.99; }},
                      std::pair{"NoClipping", +[](ReferenceOptimizer& o) { o.max_grad_norm = 0; }}),
    [](const auto& test) { return test.param.first; });

/// The same errors in a run whose bounds come from nearly tied experts.
class PlantedOptimizerAtATie : public PlantedOptimizer {};

TEST_P(PlantedOptimizerAtATie, IsNoticed) {
  VerifyOptions options;
  options.case_directory = kPlantedFrom.parent_path() / "qwen3_5_moe_long";
  options.threads = 1;
  options.change_optimizer = GetParam().second;
  const VerifyReport report = verify_case(options);
  EXPECT_THAT(report_table(report), ::testing::HasSubstr("bound of 6 of 20: twice the reference's own noise"));
  EXPECT_THAT(failed_rows(report),
              ::testing::IsSupersetOf({"lora_experts, change of weights", "lora_experts, change of weights, tensors"}))
      << report_table(report);
}

INSTANTIATE_TEST_SUITE_P(
    Errors, PlantedOptimizerAtATie,
    ::testing::Values(std::pair{"NoDecay", +[](ReferenceOptimizer& o) { o.groups.weight_decay = 0; }},
                      std::pair{"WrongBeta1", +[](ReferenceOptimizer& o) { o.adamw.beta1 = 0.95; }},
                      std::pair{"WrongBeta2", +[](ReferenceOptimizer& o) { o.adamw.beta2 = 0.99; }},
                      std::pair{"NoClipping", +[](ReferenceOptimizer& o) { o.max_grad_norm = 0; }}),
    [](const auto& test) { return test.param.first; });

TEST_F(PlantedCase, MissingAndBrokenFilesAreTheUsersMistakes) {
  const auto complaint = [&]() -> std::string {
    try {
      verify_case(options());
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  fs::remove(path("packed_grads.safetensors"));
  EXPECT_THAT(complaint(), ::testing::HasSubstr("packed_grads.safetensors"));
  restore("packed_grads.safetensors");
  fs::resize_file(path("grads.safetensors"), 5000);
  EXPECT_THAT(complaint(), ::testing::HasSubstr("grads.safetensors"));
  restore("grads.safetensors");
  edit([](Json& json) { json["full"].erase("steps"); });
  EXPECT_THAT(complaint(), ::testing::HasSubstr("'full.steps'"));
  edit([](Json& json) { json["greedy"]["prompt"][0] = 5000; });
  EXPECT_THAT(complaint(), ::testing::HasSubstr("5000 is not a token of the model"));
  std::ofstream(path("expected.json")) << "{";
  EXPECT_THAT(complaint(), ::testing::HasSubstr("not a JSON object"));
  fs::remove(path("expected.json"));
  EXPECT_THAT(complaint(), ::testing::HasSubstr("has no expected.json"));
}

/// Adds noise to a run of the case: of the last step's loss, and of one tensor's change.
void add_noise(Json& run, double loss, double change) {
  std::vector<double> none(run["steps"].size(), 0.0), last = none;
  last.back() = loss;
  run["noise"] = {{"loss", last},
                  {"aux_loss", none},
                  {"grad_norm", none},
                  {"change", 0.0},
                  {"change_of_tensors", {{"model.embed_tokens.weight", change}}}};
}

TEST_F(PlantedCase, NoiseOfTheCaseWidensTheBoundsOfItsOwnRun) {
  const double error = 10 * 2e-5;
  const auto failures = [&](double noise) {
    edit([&](Json& json) {
      for (const char* run : {"lora_attention", "lora_experts"}) {
        Json& loss = json[run]["steps"].back()["loss"];
        loss = loss.get<double>() * (1 + error);
      }
      add_noise(json["lora_attention"], noise, 0.0);
    });
    return verify_failures();
  };
  EXPECT_THAT(failures(0.6 * error), ::testing::ElementsAre("lora_experts, loss"));
  EXPECT_THAT(failures(0.4 * error), ::testing::ElementsAre("lora_attention, loss", "lora_experts, loss"));
}

TEST_F(PlantedCase, NoiseThatNoErrorCouldExceedIsRefused) {
  const auto complaint = [&](const std::function<void(Json&)>& change) -> std::string {
    edit([&](Json& json) {
      add_noise(json["full"], 1e-4, 0.1);
      change(json["full"]["noise"]);
    });
    return refusal_of_case();
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(complaint([](Json&) {}), "no error");
  EXPECT_THAT(complaint([](Json& noise) { noise["loss"][3] = 0.021; }),
              HasSubstr("'full.noise.loss' is not from 0 to"));
  EXPECT_THAT(complaint([](Json& noise) { noise["grad_norm"][0] = -1e-9; }), HasSubstr("'full.noise.grad_norm'"));
  EXPECT_THAT(complaint([](Json& noise) { noise["change"] = 0.5; }), HasSubstr("'full.noise.change'"));
  EXPECT_THAT(complaint([](Json& noise) { noise["change_of_tensors"]["lm_head.weight"] = 1e300; }),
              HasSubstr("'full.noise.change_of_tensors.lm_head.weight'"));
  EXPECT_THAT(complaint([](Json& noise) { noise["aux_loss"].get_ref<Json::array_t&>().pop_back(); }),
              HasSubstr("a list of 20 numbers"));
  // NaN and infinity are null in JSON.
  EXPECT_THAT(complaint([](Json& noise) { noise["loss"][0] = std::nan(""); }), HasSubstr("'full.noise.loss'"));
  EXPECT_THAT(complaint([](Json& noise) { noise["change"] = nullptr; }), HasSubstr("'full.noise.change'"));
  EXPECT_THAT(complaint([](Json& noise) { noise["change"] = "0.1"; }), HasSubstr("'full.noise.change'"));
  EXPECT_THAT(complaint([](Json& noise) { noise.erase("grad_norm"); }), HasSubstr("'full.noise.grad_norm'"));
  EXPECT_THAT(complaint([](Json& noise) { noise = 0.1; }), HasSubstr("'full.noise.' is not an object"));
}

TEST_F(PlantedCase, UnknownDevicesAndDtypesAreRefused) {
  VerifyOptions wrong = options();
  wrong.keys = {"dtype=float16"};
  EXPECT_THROW(verify_case(wrong), UserError);
  wrong = options();
  wrong.keys = {"device=cuda:0"};
  EXPECT_THROW(verify_case(wrong), UserError);
}

TEST(VerifyReport, AnErrorThatIsNotANumberDoesNotHold) {
  VerifyReport report{"tiny", "float32", {compare_number("loss", std::nan(""), 1.0, 1e-5)}};
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report_json(report)["rows"][0]["worst"], Json(nullptr));
  EXPECT_EQ(report_json(report)["ok"], false);
}

TEST(VerifyReport, RowsThatAreOnlyShownDoNotDecide) {
  VerifyReport report{"tiny", "bfloat16", {compare_number("loss", 2.0, 1.0, 0.0)}};
  EXPECT_FALSE(report.ok());
  report.checks[0].required = false;
  EXPECT_TRUE(report.ok());
  EXPECT_THAT(report_table(report), ::testing::HasSubstr("shown"));
}

}  // namespace
}  // namespace hone
