// Compares steps of Muon with those of torch.optim.Muon for the same gradients (tools/make_muon_fixture.py).
#include "optim/muon_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <tuple>

#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/transfer.h"
#include "core/text/json.h"

namespace hone {
namespace {

Json muon_fixture() {
  std::ifstream file(HONE_SOURCE_DIR "/tests/fixtures/muon.json");
  return Json::parse(file);
}

OptimizerOptions muon_options(const Json& told) {
  const MuonOptions muon{.momentum = told.value("momentum", 0.95),
                         .nesterov = told.value("nesterov", true),
                         .steps = told.value("ns_steps", 5),
                         .rate = told.value("adjust_lr_fn", "original") == "match_rms_adamw" ? MuonRate::kMatchRmsAdamw
                                                                                             : MuonRate::kOriginal};
  return {muon_groups(muon_rule(muon), adamw_rule(), {.weight_decay = told.value("weight_decay", 0.0)}), 0};
}

/// The fixture's matrices in a store.
struct Matrices {
  Matrices(const Json& data, const OptimizerOptions& o) : optimizer(store, o), options(o) {
    for (const auto& dims : data.at("shapes")) {
      const Shape shape{dims[0].get<int64_t>(), dims[1].get<int64_t>()};
      Parameter& p =
          store.add({"p" + std::to_string(store.all().size()), shape, ParameterKind::kAttention, 0, {}}, DType::kF32);
      p.set_formats(options.state_of(p, {}));
    }
    store.allocate(Device{});
    scratch.reserve(size_t{1} << 20);
    spread(data.at("start"), [](Parameter& p, const float* x) { write_values(p, 0, x, p.shape().numel()); });
  }

  template <class Write>
  void spread(const std::vector<float>& values, const Write& write) {
    size_t at = 0;
    for (Parameter& parameter : store.all()) {
      write(parameter, values.data() + at);
      at += static_cast<size_t>(parameter.shape().numel());
    }
  }

  std::vector<double> step(int64_t index, const std::vector<float>& gradients, double rate) {
    spread(gradients,
           [](Parameter& p, const float* x) { copy_from_host(p.gradient().whole(), x, p.gradient().whole().bytes()); });
    scalars = {};
    options.set_step(scalars, rate, index);
    optimizer.update(context, &scalars);
    stream.synchronize();
    std::vector<double> values;
    for (Parameter& parameter : store.all()) {
      const auto* p = parameter.value().whole().as<float>();
      values.insert(values.end(), p, p + parameter.shape().numel());
    }
    return values;
  }

  ParameterStore store;
  ThreadPool pool{2};
  Stream stream{Device{}, pool};
  Arena scratch{Device{}, "scratch"};
  Context context{stream, scratch};
  StepScalars scalars;
  Optimizer optimizer;
  OptimizerOptions options;
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

TEST(Muon, FollowsTheTrajectoriesOfTorch) {
  const Json data = muon_fixture();
  for (const Json& one : data.at("cases")) {
    SCOPED_TRACE(one.at("options").dump());
    Matrices run(data, muon_options(one.at("options")));
    std::vector<double> got, before = data.at("start");
    double moved = 0;
    for (size_t t = 0; t < data.at("gradients").size(); ++t) {
      got = run.step(static_cast<int64_t>(t), data.at("gradients")[t], data.at("learning_rate"));
      const std::vector<double> want = one.at("after")[t];
      ASSERT_EQ(got.size(), want.size());
      // The reference is float64. Each step rounds a parameter of at most 4 twice; a rounding error of x grows by at
      // most the polynomial's 3.4445 per iteration, and is then multiplied by a rate of 0.1.
      const double bound = static_cast<double>(t + 1) * (2 * 4 + 0.1 * std::pow(3.4445, 5)) * 0x1p-24;
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], bound) << "step " << t << ", " << i;
      moved += distance(want, before);
      before = want;
    }
    // torch rounds x to bfloat16 after each product, with a relative error of 2^-9: in all 1 to 2 % of the steps.
    EXPECT_LT(distance(got, one.at("bfloat16")), 0.02 * moved);
  }
}

TEST(Muon, StepsHiddenMatricesAndLeavesTheRestToAdamw) {
  ParameterStore store;
  const OptimizerOptions options{muon_groups(muon_rule(), adamw_rule(), {.weight_decay = 0.1, .lora_b_rate = 4})};
  const auto group_of = [&](const std::string& name, const Shape& shape, ParameterKind kind) {
    const OptimizerGroup& group = options.group_of(store.add({name, shape, kind, 0, {}}, DType::kF32));
    return std::tuple(std::string(group.rule->name()), group.rate_factor, group.weight_decay);
  };
  const std::tuple<std::string, double, double> muon{"muon", 1, 0.1}, adamw{"adamw", 1, 0.1}, vectors{"adamw", 1, 0};
  EXPECT_EQ(group_of("q", {8, 4}, ParameterKind::kAttention), muon);
  EXPECT_EQ(group_of("z", {8, 4}, ParameterKind::kAttentionGate), muon);
  EXPECT_EQ(group_of("mlp", {8, 4}, ParameterKind::kMlp), muon);
  EXPECT_EQ(group_of("gate_up", {2, 8, 4}, ParameterKind::kExpertsGateUp), muon);
  EXPECT_EQ(group_of("up", {2, 4, 4}, ParameterKind::kExpertsUp), muon);
  EXPECT_EQ(group_of("down", {2, 4, 4}, ParameterKind::kExpertsDown), muon);
  EXPECT_EQ(group_of("q.lora_A", {2, 4}, ParameterKind::kLora), muon);
  EXPECT_EQ(group_of("q.lora_B", {8, 2}, ParameterKind::kLora), std::tuple("muon", 4.0, 0.1));
  EXPECT_EQ(group_of("magnitude", {8}, ParameterKind::kLora), vectors);
  EXPECT_EQ(group_of("norm", {4}, ParameterKind::kNorm), vectors);
  EXPECT_EQ(group_of("bias", {2, 8}, ParameterKind::kBias), adamw);
  EXPECT_EQ(group_of("embed", {16, 4}, ParameterKind::kEmbedding), adamw);
  EXPECT_EQ(group_of("head", {16, 4}, ParameterKind::kHead), adamw);
  EXPECT_EQ(group_of("router", {2, 4}, ParameterKind::kRouter), adamw);
  EXPECT_EQ(group_of("conv", {8, 1, 4}, ParameterKind::kRecurrence), adamw);
}

TEST(Muon, KnowsGateAndUpOfExpertsApart) {
  ParameterStore store;
  const Parameter& gate_up = store.add({"gate_up", {3, 10, 4}, ParameterKind::kExpertsGateUp, 0, {}}, DType::kF32);
  EXPECT_EQ(gate_up.spec().matrix().rows, 5);
  EXPECT_EQ(gate_up.spec().matrix().columns, 4);
  const Parameter& down = store.add({"down", {3, 4, 5}, ParameterKind::kExpertsDown, 0, {}}, DType::kF32);
  EXPECT_EQ(down.spec().matrix().rows, 4);
  const Parameter& up = store.add({"up", {3, 10, 4}, ParameterKind::kExpertsUp, 0, {}}, DType::kF32);
  EXPECT_EQ(up.spec().matrix().rows, 10) << "there is no gate";
}

TEST(Muon, IsRefusedOnAGpu) {
  const OptimizerOptions options{muon_groups(muon_rule(), adamw_rule(), {})};
  EXPECT_NO_THROW(options.require(Device{}, "optim"));
  EXPECT_THROW(options.require({DeviceKind::kCuda, 0}, "optim"), UserError);
  EXPECT_NO_THROW(OptimizerOptions{}.require({DeviceKind::kCuda, 0}, "optim"));
}

}  // namespace
}  // namespace hone
