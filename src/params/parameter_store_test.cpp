#include "params/parameter_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/cpu/cpu_features.h"
#include "core/cpu/thread_pool.h"
#include "formats/int8_weights.h"
#include "params/frozen_weights.h"
#include "params/random_weights.h"
#include "params/store_testing.h"

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
  EXPECT_TRUE(trained.state().has_master() && trained.gradient().whole().defined() &&
              trained.state().moment2.values.defined());
  EXPECT_FALSE(frozen.state().has_master() || frozen.gradient().whole().defined() ||
               frozen.state().moment1.values.defined());
  EXPECT_EQ(ParameterStore::bytes_of(trained).total(), 6 * (2 + 4 + 4 + 8));
  EXPECT_EQ(ParameterStore::bytes_of(frozen).total(), 4 * 2);
  EXPECT_EQ(names_of(store.trainable()), std::vector<std::string>{"a"});
  EXPECT_ANY_THROW(store.add({"a", {1}, ParameterKind::kNorm, 0, {}}, DType::kF32));
}

constexpr TrainingFormats kFewBits{.gradient = DType::kBF16, .master = DType::kBF16, .m = DType::kI8, .v = DType::kU8};

TEST(ParameterStore, KeepsTrainingStateInItsFormats) {
  ParameterStore store;
  Parameter& parameter = store.add({"a", {64, 65}, ParameterKind::kAttention, 0, {}}, DType::kBF16);
  parameter.set_formats(kFewBits);
  constexpr int64_t kElements = 64 * 65, kScales = 17;
  const ParameterBytes bytes = ParameterStore::bytes_of(parameter);
  EXPECT_EQ(bytes.gradients, 2 * kElements);
  EXPECT_EQ(bytes.master, 0);
  EXPECT_EQ(bytes.moments, 2 * (kElements + 4 * kScales));
  store.allocate(Device{});
  EXPECT_EQ(parameter.gradient().whole().dtype, DType::kBF16);
  EXPECT_FALSE(parameter.state().has_master());
  EXPECT_EQ(stepped_value(parameter).data, parameter.value().whole().data);
  EXPECT_EQ(parameter.state().moment1.values.dtype, DType::kI8);
  EXPECT_EQ(parameter.state().moment2.values.dtype, DType::kU8);
  EXPECT_EQ(parameter.state().moment2.scales.shape, Shape{kScales});
}

TEST(ParameterStore, KeepsFloat32StateWhereFewerBitsWouldSaveNothing) {
  ParameterStore store;
  Parameter& norm = store.add({"n", {5000}, ParameterKind::kNorm, 0, {}}, DType::kBF16);
  Parameter& small = store.add({"s", {63, 65}, ParameterKind::kAttention, 0, {}}, DType::kBF16);
  Parameter& adapter = store.add({"l", {64, 64}, ParameterKind::kLora, 0, {}}, DType::kF32);
  for (Parameter& parameter : store.all()) parameter.set_formats(kFewBits);
  store.allocate(Device{});
  EXPECT_EQ(norm.gradient().whole().dtype, DType::kF32);
  EXPECT_EQ(norm.state().moment1.values.dtype, DType::kI8);
  EXPECT_EQ(small.gradient().whole().dtype, DType::kBF16);
  EXPECT_EQ(small.state().moment1.values.dtype, DType::kF32);
  EXPECT_FALSE(small.state().moment1.scales.defined());
  EXPECT_EQ(adapter.gradient().whole().dtype, DType::kF32);
  EXPECT_EQ(adapter.state().moment2.values.dtype, DType::kU8);
}

TEST(ParameterStore, LayersMayShareTheMemoryOfTheirGradients) {
  ParameterStore store;
  Parameter& embedding = store.add({"e", {100}, ParameterKind::kEmbedding, -1, {}}, DType::kF32);
  Parameter& first = store.add({"0.a", {300}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  Parameter& first_too = store.add({"0.b", {64}, ParameterKind::kNorm, 0, {}}, DType::kF32);
  Parameter& second = store.add({"1.a", {200}, ParameterKind::kAttention, 1, {}}, DType::kF32);
  Parameter& head = store.add({"h", {64}, ParameterKind::kHead, -1, {}}, DType::kF32);
  Placement placement;
  testing::add_groups(store, placement);
  store.share_layer_gradients(true);
  store.share_among({});
  // Tensors start at multiples of 256 bytes: 512 + 256 outside the layers, 1280 + 256 of layer 0, 1024 of layer 1.
  EXPECT_EQ(store.bytes().gradients, 768 + 1536);
  EXPECT_EQ(store.bytes(false).gradients, 0);
  store.allocate(Device{});
  EXPECT_EQ(first.gradient().whole().data, second.gradient().whole().data);
  const std::vector<Parameter*> apart = {&embedding, &head, &first, &first_too};
  for (size_t i = 0; i + 1 < apart.size(); ++i) {
    for (size_t j = i + 1; j < apart.size(); ++j) {
      const Tensor &a = apart[i]->gradient().whole(), &b = apart[j]->gradient().whole();
      EXPECT_TRUE(a.data + a.bytes() <= b.data || b.data + b.bytes() <= a.data) << i << ", " << j;
    }
  }
}

TEST(ParameterStore, BucketsFollowBackwardAndSmallOnesWaitForTheNext) {
  ParameterStore store;
  store.add({"e", {1000}, ParameterKind::kEmbedding, -1, {}}, DType::kF32);
  for (int layer = 0; layer < 3; ++layer) {
    const std::string name = std::to_string(layer);
    store.add({name + ".a", {100}, ParameterKind::kAttention, layer, {}}, DType::kF32);
    store.add({name + ".m", {1000}, ParameterKind::kMlp, layer, {}}, DType::kF32);
    store.add({name + ".n", {100}, ParameterKind::kNorm, layer, {}}, DType::kF32);
  }
  store.add({"h", {1000}, ParameterKind::kHead, -1, {}}, DType::kF32);
  Placement placement;
  testing::add_groups(store, placement);
  const auto names = [&](int64_t least_bytes) {
    store.share_among({.rank = 0, .ranks = 2, .stage = ZeroStage::kState, .least_bucket_bytes = least_bytes});
    std::vector<std::string> list;
    for (const Bucket& bucket : store.buckets()) list.push_back(bucket.name);
    return list;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(0), (Names{"head", "layer 2 feed-forward", "layer 2", "layer 1 feed-forward", "layer 1",
                             "layer 0 feed-forward", "layer 0", "embedding"}));
  // Halves have 4096 and 2048 bytes.
  EXPECT_EQ(names(4096), (Names{"head", "layer 2 feed-forward", "layer 2 to layer 1 feed-forward",
                                "layer 1 to layer 0 feed-forward", "layer 0", "embedding"}));
  EXPECT_EQ(names(1 << 20), (Names{"head to layer 0", "embedding"})) << "the embedding's may have two uses";
  const Bucket& all = store.buckets().front();
  std::vector<bool> taken(static_cast<size_t>(all.layout.elements / Bucket::kAlignment));
  for (size_t i = 0; i < all.parameters.size(); ++i) {
    EXPECT_EQ(all.layout.offsets[i] % Bucket::kAlignment, 0);
    for (int64_t at = 0; at < all.parameters[i]->shape().numel(); at += Bucket::kAlignment) {
      const auto block = static_cast<size_t>((all.layout.offsets[i] + at) / Bucket::kAlignment);
      EXPECT_FALSE(taken.at(block)) << all.parameters[i]->name();
      taken[block] = true;
    }
  }
}

TEST(ParameterStore, RanksCutBetweenMatricesThatStayWhole) {
  ParameterStore store;
  Parameter& q = store.add({"q", {30, 50}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  Parameter& norm = store.add({"n", {700}, ParameterKind::kNorm, 0, {}}, DType::kF32);
  // 10 matrices of 640 elements, of which two together are a multiple of 256.
  Parameter& gate_up = store.add({"g", {5, 40, 32}, ParameterKind::kExpertsGateUp, 0, {}}, DType::kF32);
  Placement placement;
  testing::add_groups(store, placement);
  for (const int ranks : {2, 3, 4, 16}) {
    for (const bool whole : {false, true}) {
      for (Parameter* p : {&q, &norm, &gate_up}) p->set_formats({.whole_matrices = whole});
      store.share_among({.rank = 0, .ranks = ranks, .stage = ZeroStage::kState, .least_bucket_bytes = 1 << 20});
      ASSERT_EQ(store.buckets().size(), 1u);
      const Bucket& bucket = store.buckets().front();
      EXPECT_EQ(bucket.layout.cuts.front(), 0);
      EXPECT_EQ(bucket.layout.cuts.back(), bucket.layout.elements);
      for (const Parameter* p : {&q, &norm, &gate_up}) {
        int64_t next = 0;
        for (int r = 0; r < ranks; ++r) {
          const Slice slice = p->share().slice_of(r);
          if (slice.count == 0) continue;
          EXPECT_EQ(slice.begin, next) << p->name();
          EXPECT_EQ(slice.begin % Bucket::kAlignment, 0) << p->name();
          if (whole && p != &norm) {
            EXPECT_EQ(slice.begin % p->spec().matrix().numel(), 0) << p->name() << " of rank " << r << " of " << ranks;
            EXPECT_EQ(slice.count % p->spec().matrix().numel(), 0) << p->name() << " of rank " << r << " of " << ranks;
          }
          next = slice.end();
        }
        EXPECT_EQ(next, p->shape().numel());
      }
      for (int r = 0; r < ranks && !whole; ++r) EXPECT_EQ(bucket.part_of(r).count, bucket.layout.elements / ranks);
    }
  }
}

TEST(ParameterStore, ExpertsOfEightBitsHaveAScaleForEachRowAndAreNotTrained) {
  ParameterStore store;
  testing::add_model(store, {.hidden = 64, .intermediate = 128, .dtype = DType::kBF16});
  hold_experts_in(store, int8_format(), "expert_weight_dtype");
  Parameter& gate_up = *store.find("model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(ParameterStore::bytes_of(gate_up).total(), 3 * 256 * 64 + 3 * 256 * 4);
  store.allocate(Device{});
  const WeightView view = gate_up.view();
  EXPECT_EQ(view.format, &int8_format());
  EXPECT_EQ(view.payload.dtype, DType::kI8);
  EXPECT_EQ(view.payload.shape, gate_up.shape());
  EXPECT_EQ(view.scales.shape, (Shape{3, 256}));
  EXPECT_FALSE(gate_up.wants_grad() || gate_up.gradient().whole().defined() || gate_up.state().has_master());
  EXPECT_EQ(store.find("model.layers.0.mlp.gate.weight")->view().format, &dense_format());
  EXPECT_TRUE(store.find("model.layers.0.mlp.gate.weight")->state().has_master());
  gate_up.set_trainable(true);
  EXPECT_ANY_THROW(ParameterStore::bytes_of(gate_up));
}

TEST(ParameterStore, WhatAPlanOnPaperLeavesIsGoneOnceThereAreBytes) {
  ParameterStore store;
  testing::add_model(store, {.dtype = DType::kBF16});
  store.allocate_dry();
  store.allocate(Device{}, true);
  for (const Parameter& p : store.all())
    EXPECT_FALSE(p.state().has_master() || p.gradient().whole().defined()) << p.name();
}

TEST(ParameterStore, FrozenExpertsAreOrderedForTheProductsThatGain) {
  ThreadPool pool(2);
  for (bool trained : {false, true}) {
    ParameterStore store;
    testing::add_model(store, {.hidden = 64, .intermediate = 128, .dtype = DType::kBF16});
    Parameter& gate_up = *store.find("model.layers.0.mlp.experts.gate_up_proj");
    gate_up.set_trainable(trained);
    store.allocate(Device{});
    const std::vector<float> values{1, 2, 3, 4};
    write_values(gate_up, 0, values.data(), 4);
    order_frozen_weights(store, pool);
    const bool in_tiles = &gate_up.value().format() == &tile_format();
    EXPECT_EQ(in_tiles, !trained && active_isa() == Isa::kAmx);
    EXPECT_EQ(gate_up.view().format, in_tiles ? &tile_format() : &dense_format());
    EXPECT_TRUE(store.find("model.layers.0.mlp.gate.weight")->value().format().dense())
        << "of which another op knows nothing";
    const BFloat16* first = gate_up.value().whole().as<BFloat16>();
    EXPECT_EQ(static_cast<float>(first[in_tiles ? 32 : 2]), 3) << "columns 2 and 3 begin a row of a tile";
    if (in_tiles) {
      EXPECT_ANY_THROW(write_values(gate_up, 0, values.data(), 4));
    }
  }
}

TEST(ParameterStore, RandomExpertsOfEightBitsHaveTheDeviationThatIsAskedFor) {
  ParameterStore store;
  testing::add_model(store, {.hidden = 64, .intermediate = 128});
  hold_experts_in(store, int8_format(), "expert_weight_dtype");
  store.allocate(Device{}, true);
  ThreadPool pool(2);
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "scratch");
  scratch.reserve(0);
  initialise_weights(Context(stream, scratch), store, 0.02, 5);
  stream.synchronize();
  const Parameter& down = *store.find("model.layers.0.mlp.experts.down_proj");
  std::vector<std::vector<float>> experts;
  for (int64_t e = 0; e < 3; ++e) {
    std::vector<float>& values = experts.emplace_back(static_cast<size_t>(64 * 128));
    dequantize_rows(down.value().whole().rows(e, 1).as<int8_t>(), down.value().stored().scales.rows(e, 1).as<float>(),
                    0, 64, 128, values.data());
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    EXPECT_NEAR(std::sqrt(squares / 8192), 0.02, 0.02 * 4 / std::sqrt(2 * 8192.0));  // four standard deviations
  }
  EXPECT_NE(experts[0], experts[1]);
  EXPECT_NE(experts[1], experts[2]);
}

TEST(ParameterStore, EachUseOfAGradientHasItsOwnStream) {
  ParameterStore store;
  Parameter& a = store.add({"a", {2, 2}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  Parameter& b = store.add({"b", {2, 2}, ParameterKind::kAttention, 0, {}}, DType::kF32);
  store.allocate(Device{});
  const StepScalars scalars;
  store.begin_step(&scalars);
  std::set<uint64_t> streams;
  for (Parameter* parameter : {&a, &a, &b, &b}) {
    parameter->grad();
    EXPECT_EQ(parameter->rounding().scalars, &scalars);
    streams.insert(parameter->rounding().stream_id);
  }
  EXPECT_EQ(streams.size(), 4u);
}

TEST(ParameterStore, WrittenValuesReachTheRoundedWeightAndTheExactMaster) {
  ParameterStore store;
  Parameter& p = store.add({"a", {3}, ParameterKind::kNorm, 0, {}}, DType::kBF16);
  store.allocate(Device{});
  const float values[] = {1.00001f, -2.5f};
  write_values(p, 1, values, 2);
  EXPECT_EQ(static_cast<float>(p.value().whole().as<BFloat16>()[1]), 1.0f);
  EXPECT_EQ(stepped_value(p).as<float>()[1], 1.00001f);
  EXPECT_EQ(stepped_value(p).as<float>()[0], 0.0f);
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
  used.gradient().whole().as<float>()[0] = unused.gradient().whole().as<float>()[0] = 5.0f;
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  Arena scratch(Device{}, "scratch");
  scratch.reserve(4096);
  store.zero_unwritten(Context(stream, scratch));
  stream.synchronize();
  EXPECT_EQ(used.gradient().whole().as<float>()[0], 5.0f);
  EXPECT_EQ(unused.gradient().whole().as<float>()[0], 0.0f);
  store.begin_step();
  EXPECT_EQ(used.grad().beta, 0.0f);
  unused.set_trainable(false);
  EXPECT_FALSE(unused.grad().wanted());
}

}  // namespace
}  // namespace hone
