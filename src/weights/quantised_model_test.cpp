// Models written in FP8 blocks and MXFP4, read again.
#include "weights/quantised_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "formats/packed_weights.h"
#include "params/frozen_weights.h"
#include "params/store_testing.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

void add_dense_and_experts(ParameterStore& store) {
  testing::add_model(store, {.experts = 3, .hidden = 160, .intermediate = 200, .vocab = 50});
}

/// Experts as in gpt-oss: [E, in, out], rows of gate and up alternately.
void add_gpt_oss_experts(ParameterStore& store) {
  const std::string experts = "model.layers.0.mlp.experts.";
  store.add(
      {experts + "gate_up_proj", {3, 334, 96}, ParameterKind::kExpertsGateUp, 0, {}, FileOrder::kTransposedInterleaved},
      DType::kF32);
  store.add({experts + "down_proj", {3, 96, 32}, ParameterKind::kExpertsDown, 0, {}, FileOrder::kTransposed},
            DType::kF32);
  store.add({experts + "gate_up_proj_bias", {3, 334}, ParameterKind::kBias, 0, {}, FileOrder::kInterleaved},
            DType::kF32);
}

class QuantisedModel : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("hone_quantised_" + std::to_string(getpid()));
    fs::remove_all(root_);
    for (const char* name : {"base", "out"}) fs::create_directories(root_ / name);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::vector<RoundedTensor> write(void (*add)(ParameterStore&), QuantMethod method, float strange = 0.0f) {
    ParameterStore store;
    add(store);
    store.allocate(Device{}, true);
    testing::fill(store, 5);
    if (strange != 0.0f) store.all()[1].value().whole().as<float>()[7] = strange;
    save_parameters(root_ / "base", store, nullptr, nullptr, {});
    const Checkpoint base = Checkpoint::open(root_ / "base");
    write_text_file(root_ / "out/config.json", quantized_config(Json::object(), method, {"lm_head"}).dump());
    return save_quantised(root_ / "out", store, base, map_checkpoint(base, store), method, pool_,
                          {.max_shard_size = 300'000});
  }

  /// Compares the written model with the base after rounding by the format.
  void expect_rounded(void (*add)(ParameterStore&), const PackedFormat& format, size_t rounded) {
    ParameterStore exact, read;
    size_t count = 0;
    for (const auto& [store, folder] : {std::pair(&exact, "base"), {&read, "out"}}) {
      add(*store);
      store->allocate(Device{}, true);
      const Checkpoint checkpoint = Checkpoint::open(root_ / folder);
      load_parameters(checkpoint, map_checkpoint(checkpoint, *store), *store, pool_);
    }
    for (size_t i = 0; i < exact.all().size(); ++i) {
      const Parameter& p = exact.all()[i];
      const bool packed = format.name() == "mxfp4" ? is_experts(p) : is_base_weight(p);
      if (packed) {
        ++count;
        const PackedLayout layout = format.layout(p.spec().stack()[-2], p.spec().stack()[-1]);
        std::vector<std::byte> chunk(static_cast<size_t>(layout.bytes));
        for (int64_t at = 0; at < p.shape().numel(); at += layout.elements()) {
          format.pack(layout, p.value().whole().as<float>() + at, chunk.data());
          unpack(layout, chunk.data(), 0, layout.elements(), p.value().whole().as<float>() + at);
        }
      }
      EXPECT_EQ(testing::bytes_of(read.all()[i].value().whole()), testing::bytes_of(p.value().whole())) << p.name();
    }
    EXPECT_EQ(count, rounded);
  }

  fs::path root_;
  ThreadPool pool_{3};
};

TEST_F(QuantisedModel, InFp8BlocksHasTheRoundedMatricesOfItsLayers) {
  const std::vector<RoundedTensor> rounded = write(add_dense_and_experts, QuantMethod::kBlockFp8);
  EXPECT_GT(rounded.size(), 6u);
  for (const RoundedTensor& tensor : rounded) {
    EXPECT_GT(tensor.error, 0.005) << tensor.name;
    EXPECT_LT(tensor.error, 0.04) << tensor.name;
  }
  ParameterStore store;
  add_dense_and_experts(store);
  size_t matrices = 0;
  for (const Parameter& p : store.all()) matrices += is_base_weight(p);
  expect_rounded(add_dense_and_experts, fp8_format(), matrices);
}

TEST_F(QuantisedModel, InMxfp4HasTheRoundedExperts) {
  const std::vector<RoundedTensor> rounded = write(add_gpt_oss_experts, QuantMethod::kMxfp4);
  ASSERT_EQ(rounded.size(), 2u);
  for (const RoundedTensor& tensor : rounded) EXPECT_LT(tensor.error, 0.2) << tensor.name;
  expect_rounded(add_gpt_oss_experts, mxfp4_format(), 2);
}

TEST_F(QuantisedModel, WithoutAMatrixOfTheFormatIsRefused) {
  EXPECT_THAT(testing::user_error([&] { write(add_dense_and_experts, QuantMethod::kMxfp4); }), HasSubstr("gpt-oss"));
}

TEST_F(QuantisedModel, NumbersThatAreNotFiniteAreRefused) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_THAT(testing::user_error([&] { write(add_gpt_oss_experts, QuantMethod::kMxfp4, infinity); }),
              HasSubstr("not finite"));
}

}  // namespace
}  // namespace hone
