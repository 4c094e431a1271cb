#include "params/parameter_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "params/test_store.h"

namespace hone {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> names_of(const std::vector<Parameter*>& parameters) {
  std::vector<std::string> names;
  for (const Parameter* parameter : parameters) names.push_back(parameter->name());
  return names;
}

TEST(ParameterStore, SelectsByOwnNamesAndByTheNamesOfFiles) {
  ParameterStore store;
  testing::add_model(store, {});
  const std::vector<std::string> experts = {"model.layers.0.mlp.experts.gate_up_proj",
                                            "model.layers.0.mlp.experts.down_proj"};
  EXPECT_EQ(names_of(store.select({"*.experts.*"}, "freeze")), experts);
  EXPECT_EQ(names_of(store.select({"re:block_sparse_moe\\.experts"}, "freeze")), experts);
  EXPECT_EQ(names_of(store.select({"w2"}, "freeze")), std::vector<std::string>{experts[1]});
  EXPECT_EQ(names_of(store.select({"norm", "q_proj", "norm"}, "freeze")),
            (std::vector<std::string>{"model.layers.0.self_attn.q_proj.weight", "model.norm.weight"}));
}

TEST(ParameterStore, APatternThatMatchesNothingIsAnErrorWithNearNames) {
  ParameterStore store;
  testing::add_model(store, {});
  const std::string message = testing::user_error([&] { store.select({"model.norn.weight"}, "freeze"); });
  EXPECT_THAT(message, HasSubstr("freeze 'model.norn.weight' matches no parameter"));
  EXPECT_THAT(message, HasSubstr("Did you mean 'model.norm.weight'"));
}

TEST(ParameterStore, ABufferIsNeverSelectedOrTrained) {
  ParameterStore store;
  testing::add_model(store, {});
  Parameter& buffer = store.add({"gate.e_score_correction_bias", {3}, ParameterKind::kBuffer, 0, {}}, DType::kF32);
  for (Parameter* parameter : store.select({"*"}, "trainable_parameters")) EXPECT_NE(parameter, &buffer);
  EXPECT_THAT(testing::user_error([&] { store.select({"*e_score*"}, "trainable_parameters"); }),
              HasSubstr("matches no parameter"));
  buffer.set_trainable(true);
  EXPECT_FALSE(buffer.trainable());
  EXPECT_FALSE(buffer.grad().wanted());
  EXPECT_EQ(ParameterStore::bytes_of(buffer).total(), 12);
}

TEST(ParameterStore, SomeExpertsOfALayerCannotBeSelectedAlone) {
  ParameterStore store;
  testing::add_model(store, {});
  EXPECT_THAT(testing::user_error([&] { store.select({"*.experts.1.w2"}, "freeze"); }), HasSubstr("1 of the 3"));
  EXPECT_THAT(testing::user_error([&] { store.select({"w1"}, "freeze"); }), HasSubstr("3 of the 6"));
}

TEST(ParameterStore, TrainableParametersGetStateAndFrozenOnesDoNot) {
  ParameterStore store;
  Parameter& trained = store.add({"a", {2, 3}, ParameterKind::kAttention, 0, {}}, DType::kBF16);
  Parameter& frozen = store.add({"b", {4}, ParameterKind::kNorm, 0, {}}, DType::kBF16);
  frozen.set_trainable(false);
  store.allocate(Device{});
  EXPECT_TRUE(trained.has_master() && trained.gradient().defined() && trained.moment2().defined());
  EXPECT_FALSE(frozen.has_master() || frozen.gradient().defined() || frozen.moment1().defined());
  EXPECT_EQ(ParameterStore::bytes_of(trained).total(), 6 * (2 + 4 + 4 + 8));
  EXPECT_EQ(ParameterStore::bytes_of(frozen).total(), 4 * 2);
  EXPECT_EQ(names_of(store.trainable()), std::vector<std::string>{"a"});
  EXPECT_ANY_THROW(store.add({"a", {1}, ParameterKind::kNorm, 0, {}}, DType::kF32));
}

TEST(ParameterStore, KeepsMomentsInTheirDtype) {
  ParameterStore store;
  Parameter& parameter = store.add({"a", {2, 3}, ParameterKind::kAttention, 0, {}}, DType::kBF16);
  parameter.set_moment_dtype(DType::kBF16);
  EXPECT_EQ(ParameterStore::bytes_of(parameter).moments, 6 * 4);
  store.allocate(Device{});
  EXPECT_EQ(parameter.moment1().dtype, DType::kBF16);
  EXPECT_EQ(parameter.moment2().dtype, DType::kBF16);
  EXPECT_EQ(parameter.gradient().dtype, DType::kF32);
}

TEST(ParameterStore, WrittenValuesReachTheRoundedWeightAndTheExactMaster) {
  ParameterStore store;
  Parameter& p = store.add({"a", {3}, ParameterKind::kNorm, 0, {}}, DType::kBF16);
  store.allocate(Device{});
  const float values[] = {1.00001f, -2.5f};
  write_values(p, 1, values, 2);
  EXPECT_EQ(static_cast<float>(p.value().as<BFloat16>()[1]), 1.0f);
  EXPECT_EQ(p.master().as<float>()[1], 1.00001f);
  EXPECT_EQ(p.master().as<float>()[0], 0.0f);
  EXPECT_ANY_THROW(write_values(p, 2, values, 2));
}

TEST(ParameterStore, TheFirstGradientOfAStepOverwritesAndUnwrittenOnesBecomeZero) {
  ParameterStore store;
  Parameter& used = store.add({"a", {2}, ParameterKind::kNorm, 0, {}}, DType::kF32);
  Parameter& unused = store.add({"b", {2}, ParameterKind::kNorm, 0, {}}, DType::kF32);
  store.allocate(Device{});
  store.begin_step();
  EXPECT_EQ(used.grad().beta, 0.0f);
  EXPECT_EQ(used.grad().beta, 1.0f);
  used.gradient().as<float>()[0] = unused.gradient().as<float>()[0] = 5.0f;
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "scratch");
  scratch.reserve(4096);
  store.zero_unwritten(Context(stream, scratch));
  stream.synchronize();
  EXPECT_EQ(used.gradient().as<float>()[0], 5.0f);
  EXPECT_EQ(unused.gradient().as<float>()[0], 0.0f);
  store.begin_step();
  EXPECT_EQ(used.grad().beta, 0.0f);
  unused.set_trainable(false);
  EXPECT_FALSE(unused.grad().wanted());
}

}  // namespace
}  // namespace hone
