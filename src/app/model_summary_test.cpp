#include "app/model_summary.h"

#include <gtest/gtest.h>

namespace hone {
namespace {

TEST(ModelSummary, NumbersInNamesBecomeStars) {
  EXPECT_EQ(glob_of("model.layers.12.mlp.experts.3.down_proj.weight"), "model.layers.*.mlp.experts.*.down_proj.weight");
  EXPECT_EQ(glob_of("w1.weight"), "w1.weight");
  EXPECT_EQ(glob_of("3"), "*");
  EXPECT_EQ(glob_of(""), "");
}

void fill(ParameterStore& store) {
  store.add({"model.embed_tokens.weight", {10, 4}, ParameterKind::kEmbedding, -1, {}}, DType::kF32);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string module = "model.layers." + std::to_string(layer) + ".";
    store.add({module + "mlp.gate.weight", {8, 4}, ParameterKind::kRouter, layer, {}}, DType::kF32);
    store.add({module + "mlp.experts.gate_up_proj", {8, 6, 4}, ParameterKind::kExpertsGateUp, layer, {}}, DType::kF32);
    store.add({module + "mlp.experts.down_proj", {8, 4, 3}, ParameterKind::kExpertsDown, layer, {}}, DType::kF32);
  }
}

TEST(ModelSummary, OnlyTheChosenExpertsAreActive) {
  ParameterStore store;
  fill(store);
  MoeConfig moe;
  moe.num_experts = 8;
  moe.num_experts_per_tok = 2;
  const std::vector<GroupCount> groups = count_groups(store, moe);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[2].group, "experts");
  EXPECT_EQ(groups[2].tensors, 4);
  EXPECT_EQ(groups[2].parameters, 2 * (8 * 6 * 4 + 8 * 4 * 3));
  EXPECT_EQ(groups[2].active, groups[2].parameters / 4);
  const GroupCount total = total_of(groups);
  EXPECT_EQ(total.parameters, 40 + 64 + groups[2].parameters);
  EXPECT_EQ(total.active, 40 + 64 + groups[2].active);
}

TEST(ModelSummary, PatternsCountTheLayersTheyMatch) {
  ParameterStore store;
  fill(store);
  const std::vector<NamePattern> patterns = name_patterns(store);
  ASSERT_EQ(patterns.size(), 4u);
  EXPECT_EQ(patterns[2].glob, "model.layers.*.mlp.experts.gate_up_proj");
  EXPECT_EQ(patterns[2].tensors, 2);
  EXPECT_EQ(patterns[2].shape, "[8, 6, 4]");
  // What is shown selects what it stands for.
  EXPECT_EQ(store.select({patterns[2].glob}, "freeze_parameters").size(), 2u);
}

}  // namespace
}  // namespace hone
