#include "app/init/new_model.h"
#include "core/thread_pool.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

std::vector<float> values_of(Parameter& parameter) {
  const float* begin = parameter.value().as<float>();
  return {begin, begin + parameter.shape().numel()};
}

TEST(NewModel, ValuesDependOnNeitherThreadsNorOtherParameters) {
  ThreadPool one(1), three(3);
  ParameterStore alone, crowded;
  // Larger than one piece of work, so that pieces must join up.
  const ParameterSpec spec = {"lm_head.weight", {700, 300}, ParameterKind::kHead, -1, {}};
  alone.add(spec, DType::kF32);
  crowded.add({"model.norm.weight", {5}, ParameterKind::kNorm, -1, {}}, DType::kF32);
  crowded.add(spec, DType::kF32);
  alone.allocate(Device{}, true);
  crowded.allocate(Device{}, true);
  initialise_weights(alone, 0.02, 7, one);
  initialise_weights(crowded, 0.02, 7, three);
  EXPECT_EQ(values_of(*alone.find("lm_head.weight")), values_of(*crowded.find("lm_head.weight")));
}

TEST(NewModel, NormsAreOneAndBiasesZero) {
  ThreadPool pool(1);
  ParameterStore store;
  Parameter& norm = store.add({"model.norm.weight", {5}, ParameterKind::kNorm, -1, {}}, DType::kF32);
  Parameter& bias = store.add({"q_proj.bias", {5}, ParameterKind::kBias, 0, {}}, DType::kF32);
  store.allocate(Device{}, true);
  initialise_weights(store, 0.02, 7, pool);
  EXPECT_EQ(values_of(norm), std::vector<float>(5, 1.0f));
  EXPECT_EQ(values_of(bias), std::vector<float>(5, 0.0f));
}

}  // namespace
}  // namespace hone
