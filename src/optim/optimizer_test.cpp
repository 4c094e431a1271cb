// Compares steps of optimizers with those of torch and transformers for the same gradients
// (tools/make_optimizer_fixture.py).
#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/cpu/thread_pool.h"
#include "core/stream/transfer.h"
#include "core/text/json.h"
#include "optim/adafactor_rule.h"
#include "optim/momentum_rule.h"
#include "optim/muon_rule.h"

namespace hone {
namespace {

Json fixture() {
  std::ifstream file(HONE_SOURCE_DIR "/tests/fixtures/optimizers.json");
  return Json::parse(file);
}

std::shared_ptr<const Rule> rule_of(const Json& told) {
  const std::string name = told.at("optim");
  if (name == "sgd") {
    return sgd_rule({.momentum = told.value("momentum", 0.0), .nesterov = told.value("nesterov", false)});
  }
  if (name == "lion") return lion_rule({.beta1 = told.at("beta1"), .beta2 = told.at("beta2")});
  return adafactor_rule({.clip_threshold = told.value("clip_threshold", 1.0),
                         .decay_rate = told.value("decay_rate", -0.8),
                         .beta1 = told.value("beta1", 0.0),
                         .scale_parameter = told.value("scale_parameter", false),
                         .relative_step = told.value("relative_step", false),
                         .warmup_init = told.value("warmup_init", false)});
}

OptimizerOptions options_of(const Json& told) {
  const GroupOptions groups{.weight_decay = told.value("weight_decay", 0.0), .decay_norms_and_biases = true};
  return {groups_of(rule_of(told), groups), 0};
}

/// The fixture's parameters, float32, and one optimizer.
struct Trajectory {
  explicit Trajectory(const Json& data, const OptimizerOptions& o) : options(o) {
    int number = 0;
    for (const auto& dims : data.at("shapes")) {
      Shape shape;
      for (const auto& dim : dims) shape.push_back(dim.get<int64_t>());
      Parameter& parameter =
          store.add({"p" + std::to_string(number++), shape, ParameterKind::kAttention, 0, {}}, DType::kF32);
      parameter.set_formats(options.state_of(parameter, {}));
    }
    store.allocate(Device{});
    const std::vector<float> start = data.at("start");
    size_t at = 0;
    for (Parameter& parameter : store.all()) {
      write_values(parameter, 0, start.data() + at, parameter.shape().numel());
      at += static_cast<size_t>(parameter.shape().numel());
    }
    scratch.reserve(size_t{1} << 16);
  }

  std::vector<double> step(int64_t index, const std::vector<float>& gradients, double rate) {
    size_t at = 0;
    for (Parameter& parameter : store.all()) {
      copy_from_host(parameter.gradient().whole(), gradients.data() + at, parameter.gradient().whole().bytes());
      at += static_cast<size_t>(parameter.shape().numel());
    }
    scalars = {};
    options.set_step(scalars, rate, index);
    Optimizer optimizer(store, options);
    optimizer.update(context, &scalars);
    stream.synchronize();
    std::vector<double> values;
    for (Parameter& parameter : store.all()) {
      const auto* p = parameter.value().whole().as<float>();
      values.insert(values.end(), p, p + parameter.shape().numel());
    }
    return values;
  }

  OptimizerOptions options;
  ParameterStore store;
  ThreadPool pool{2};
  Stream stream{Device{}, pool};
  Arena scratch{Device{}, "scratch"};
  Context context{stream, scratch};
  StepScalars scalars;
};

TEST(Optimizers, FollowTheTrajectoriesOfTorchAndTransformers) {
  const Json data = fixture();
  for (const Json& one : data.at("cases")) {
    SCOPED_TRACE(one.at("options").dump());
    Trajectory run(data, options_of(one.at("options")));
    for (size_t t = 0; t < data.at("gradients").size(); ++t) {
      const std::vector<double> got =
          run.step(static_cast<int64_t>(t), data.at("gradients")[t], data.at("learning_rate"));
      const std::vector<double> want = one.at("after")[t];
      ASSERT_EQ(got.size(), want.size());
      // The reference is float64. Each step rounds a parameter of at most 4 twice, and its change, at most 0.01 · 10,
      // has about thirty roundings.
      const auto steps = static_cast<double>(t + 1);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], steps * (2 * 4 * 0x1p-24 + 0.1 * 30 * 0x1p-24)) << "step " << t << ", " << i;
      }
    }
  }
}

TEST(Optimizers, KeepNoMoreThanTheyNeed) {
  const auto moments = [](const std::shared_ptr<const Rule>& rule) {
    const OptimizerOptions options{rule->name() == "muon" ? muon_groups(rule, adamw_rule(), {}) : groups_of(rule)};
    ParameterStore store;
    store.add({"w", {3, 64, 32}, ParameterKind::kExpertsDown, 0, {}}, DType::kBF16);
    store.add({"norm", {32}, ParameterKind::kNorm, 0, {}}, DType::kBF16);
    int64_t bytes = 0;
    for (Parameter& parameter : store.all()) {
      parameter.set_formats(options.state_of(parameter, {}));
      bytes += ParameterStore::bytes_of(parameter).moments;
    }
    return bytes;
  };
  constexpr int64_t kAll = (3 * 64 * 32 + 32) * 4, kFactors = (3 * 64 + 3 * 32 + 32) * 4;
  EXPECT_EQ(moments(adamw_rule()), 2 * kAll);
  EXPECT_EQ(moments(lion_rule()), kAll);
  EXPECT_EQ(moments(sgd_rule()), 0);
  EXPECT_EQ(moments(sgd_rule({.momentum = 0.9})), kAll);
  EXPECT_EQ(moments(adafactor_rule()), kFactors);
  EXPECT_EQ(moments(adafactor_rule({.beta1 = 0.9})), kFactors + kAll);
  EXPECT_EQ(moments(muon_rule()), kAll + 32 * 4) << "both moments of the norm";
}

}  // namespace
}  // namespace hone
