// The models of reference cases on packed bases: gradients of adapters against a float32 run of weights that this file
// rounds by itself, in float64 and by search, from the definitions of the formats (formats/packed_weights.h).
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "all_cases.h"
#include "app/verify/golden_case.h"
#include "app/verify/replay.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/transfer.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "device_main.h"
#include "session/device_facts.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

fs::path goldens() { return test_run().fixtures / "goldens"; }

/// A matrix [rows, columns] of the weights that a test rounds.
struct Matrix {
  float* values;
  int64_t rows, columns;
};

/// The number of `numbers` that is nearest to x.
double nearest(const std::vector<double>& numbers, double x) {
  double best = numbers.front();
  for (const double number : numbers) best = std::abs(number - x) < std::abs(best - x) ? number : best;
  return best;
}

/// Calls round(elements) for the addresses of the elements of each block of `rows` x `columns`.
template <class Round>
void for_blocks(const Matrix& m, int64_t rows, int64_t columns, const Round& round) {
  for (int64_t row = 0; row < m.rows; row += rows) {
    for (int64_t column = 0; column < m.columns; column += columns) {
      std::vector<float*> block;
      for (int64_t r = row; r < std::min(m.rows, row + rows); ++r) {
        for (int64_t c = column; c < std::min(m.columns, column + columns); ++c)
          block.push_back(m.values + r * m.columns + c);
      }
      round(block);
    }
  }
}

double largest(const std::vector<float*>& block) {
  double most = 0;
  for (const float* value : block) most = std::max(most, std::abs(double{*value}));
  return most;
}

/// Whole numbers from -most to most times a scale, which is rounded to T. A code is the product with the scale's
/// inverse in float32, as the format says: it decides where a value is between two codes, but for its last bits.
template <class T>
void round_whole(const std::vector<float*>& block, float most) {
  const auto magnitude = static_cast<float>(largest(block));
  const auto scale = static_cast<float>(T(magnitude / most));
  if (scale == 0.0f) return;
  const float inverse = std::is_same_v<T, float> ? most / magnitude : 1.0f / scale;
  for (float* value : block) *value = std::clamp(std::nearbyint(*value * inverse), -most, most) * scale;
}

/// Sign, exponent and mantissa of a small float with so many bits of each, without infinities.
std::vector<double> small_floats(int exponent_bits, int mantissa_bits, double most) {
  std::vector<double> numbers;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  for (int exponent = 0; exponent < 1 << exponent_bits; ++exponent) {
    for (int mantissa = 0; mantissa < 1 << mantissa_bits; ++mantissa) {
      const double fraction = static_cast<double>(mantissa) / (1 << mantissa_bits);
      const double number = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
      if (number > most) continue;
      numbers.push_back(number);
      numbers.push_back(-number);
    }
  }
  return numbers;
}

void round_fp8(const Matrix& m) {
  const std::vector<double> e4m3 = small_floats(4, 3, 448);
  for_blocks(m, 128, 128, [&](const std::vector<float*>& block) {
    const auto scale = static_cast<float>(largest(block) / 448);
    for (float* value : block) *value = static_cast<float>(nearest(e4m3, double{*value} / double{scale})) * scale;
  });
}

void round_mxfp4(const Matrix& m) {
  const std::vector<double> e2m1 = small_floats(2, 1, 6);
  for_blocks(m, 1, 32, [&](const std::vector<float*>& block) {
    const double most = largest(block);
    const double scale = most > 0 ? std::exp2(std::floor(std::log2(most)) - 2) : 1;
    for (float* value : block) *value = static_cast<float>(nearest(e2m1, double{*value} / scale) * scale);
  });
}

/// The signed dynamic map as bitsandbytes made it.
std::vector<double> scale_map() {
  const auto hex = read_json(test_run().fixtures / "nf4.json")["scale_map"].get<std::string>();
  std::vector<double> map;
  for (size_t i = 0; i < hex.size(); i += 8) {
    uint32_t bits = 0;
    for (size_t byte = 0; byte < 4; ++byte)
      bits |= static_cast<uint32_t>(std::stoul(hex.substr(i + 2 * byte, 2), nullptr, 16)) << 8 * byte;
    map.push_back(double{std::bit_cast<float>(bits)});
  }
  return map;
}

/// nf4, whose scales are nested, and nf4_float_scales, whose scales are the largest magnitudes as they are.
void round_nf4(const Matrix& m, bool nested_scales) {
  const std::vector<double> quantiles = {-1.0,
                                         -0.6961928009986877,
                                         -0.5250730514526367,
                                         -0.39491748809814453,
                                         -0.28444138169288635,
                                         -0.18477343022823334,
                                         -0.09105003625154495,
                                         0.0,
                                         0.07958029955625534,
                                         0.16093020141124725,
                                         0.24611230194568634,
                                         0.33791524171829224,
                                         0.44070982933044434,
                                         0.5626170039176941,
                                         0.7229568362236023,
                                         1.0};
  static const std::vector<double> map = scale_map();
  const Matrix flat{m.values, 1, m.rows * m.columns};
  std::vector<std::vector<float*>> blocks;
  for_blocks(flat, 1, 64, [&](const std::vector<float*>& block) { blocks.push_back(block); });
  double mean = 0;
  for (const auto& block : blocks) mean += largest(block) / static_cast<double>(blocks.size());
  const auto offset = static_cast<float>(mean);
  for (size_t first = 0; first < blocks.size(); first += 256) {
    const size_t end = std::min(blocks.size(), first + 256);
    double nested = 0;
    for (size_t b = first; b < end; ++b) nested = std::max(nested, std::abs(largest(blocks[b]) - double{offset}));
    for (size_t b = first; b < end; ++b) {
      const double exact = largest(blocks[b]);
      const double code = nested > 0 ? nearest(map, (exact - double{offset}) / nested) : 0;
      const float scale =
          nested_scales ? static_cast<float>(code) * static_cast<float>(nested) + offset : static_cast<float>(exact);
      for (float* value : blocks[b]) {
        *value = static_cast<float>(exact > 0 ? nearest(quantiles, double{*value} / exact) : 0) * scale;
      }
    }
  }
}

void round_to(const std::string& format, const Matrix& m) {
  if (format == "nf4" || format == "nf4_float_scales") return round_nf4(m, format == "nf4");
  if (format == "fp8") return round_fp8(m);
  if (format == "mxfp4") return round_mxfp4(m);
  if (format == "int8") {
    return for_blocks(m, 1, m.columns, [](const auto& block) { round_whole<float>(block, 127); });
  }
  for_blocks(m, 1, format == "int4" ? 32 : 128, [](const auto& block) { round_whole<BFloat16>(block, 7); });
}

/// A case's model with an adapter, and the loss and the gradients of its first batch.
class AdapterRun {
 public:
  AdapterRun(const fs::path& directory, const std::string& adapter, const std::string& base)
      : stream_(choose_device(test_run().device), pool_) {
    data_.micro_batches = {pack_documents(GoldenCase::read(directory).batches[0])};
    const MicroBatch& batch = data_.micro_batches[0];
    ReplayOptions options;
    options.adapter = directory / adapter;
    options.base = base;
    replay_ = std::make_unique<Replay>(
        directory / "model", stream_,
        BatchCapacity{batch.tokens(), batch.documents(), batch.tokens(), batch.max_seqlen}, options);
  }

  ParameterStore& store() { return replay_->store(); }
  struct Measured {
    double loss = 0;
    HostTensors gradients = {};
  };
  Measured measure() {
    const auto engine = replay_->make_engine(replay_->config().moe.router_aux_loss_coef);
    engine->accumulate(data_, 0);
    const double loss = engine->measure().loss.loss;
    return {loss, replay_->gradients()};
  }

 private:
  ThreadPool pool_{2};
  Stream stream_;
  StepData data_;
  std::unique_ptr<Replay> replay_;
};

/// Rounds the weights of `dense` that `packed` packs; returns their number.
int round_like(const std::string& format, const ParameterStore& packed, ParameterStore& dense) {
  int count = 0;
  for (const Parameter& p : packed.all()) {
    if (!p.value().packed()) continue;
    ++count;
    const Tensor value = dense.find(p.name())->value().whole();
    std::vector<float> values(static_cast<size_t>(value.numel()));
    copy_to_host(values.data(), value);
    const int64_t rows = p.spec().stack()[-2], columns = p.spec().stack()[-1];
    for (int64_t at = 0; at < value.numel(); at += rows * columns)
      round_to(format, {values.data() + at, rows, columns});
    copy_from_host(value, values.data(), value.bytes());
  }
  return count;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return std::sqrt(sum);
}

/// The bound of gradients of reference cases: 1e-4 of a tensor's norm, or of 1e-4 of the norm of all.
void expect_near(const HostTensors& ours, const HostTensors& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  double all = 0;
  for (const auto& [key, tensor] : expected) all = std::hypot(all, norm(tensor.values));
  ASSERT_GT(all, 0);
  for (const auto& [key, tensor] : expected) {
    std::vector<float> difference = ours.at(key).values;
    for (size_t i = 0; i < difference.size(); ++i) difference[i] -= tensor.values[i];
    EXPECT_LE(norm(difference), 1e-4 * std::max(norm(tensor.values), 1e-4 * all)) << key;
  }
}

class PackedGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(PackedGolden, LossAndGradientsOfAdaptersAreThoseOfTheRoundedWeights) {
  constexpr double kLossBound = 1e-5;  // relative
  const fs::path directory = goldens() / GetParam();
  if (GetParam() == "kimi_k25_int4")
    GTEST_SKIP() << "its files have codes, which weights/compressed_matrix_test.cpp tests";
  for (const char* adapter : {"lora_attention_init", "lora_experts_init"}) {
    if (!fs::exists(directory / adapter)) continue;
    for (const char* format : {"nf4", "nf4_float_scales", "int8", "int4", "int4_128", "fp8", "mxfp4"}) {
      SCOPED_TRACE(std::string(adapter) + " " + format);
      AdapterRun dense(directory, adapter, "dtype");
      std::unique_ptr<AdapterRun> run;
      try {
        run = std::make_unique<AdapterRun>(directory, adapter, format);
      } catch (const UserError& error) {  // no matrix of this model has a multiple of the block
        EXPECT_NE(std::string(error.what()).find("no frozen weight is packed"), std::string::npos) << error.what();
        EXPECT_TRUE(std::string(format) == "int4_128" || std::string(format) == "int4" ||
                    std::string(format) == "mxfp4");
        continue;
      }
      EXPECT_GT(round_like(format, run->store(), dense.store()), 0);
      const AdapterRun::Measured ours = run->measure(), expected = dense.measure();
      EXPECT_NEAR(ours.loss, expected.loss, kLossBound * expected.loss);
      expect_near(ours.gradients, expected.gradients);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PackedGolden, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return test.param; });

TEST(PackedBase, TakesTheMemoryOfItsCodes) {
  Json json = HfConfig::read(goldens() / "qwen3_moe/model").json();
  json["num_hidden_layers"] = 64;
  const auto bytes = [&](const std::string& base, Offload offload, int ranks) {
    LoadedModel model(HfConfig(json, "config.json"), goldens() / "qwen3_moe/model", DType::kBF16);
    TrainableOptions options = TrainableOptions::nothing();
    hold_base_as(options, BaseFormat::parse(base, "base"));
    options.ranks = {.rank = ranks - 1, .ranks = ranks, .stage = ZeroStage::kValues, .offload = offload};
    options.ranks.least_sharded_elements = 0;
    model.set_trainable(options);
    return model.store().bytes(false);
  };
  const int64_t dense = bytes("dtype", {}, 1).weights, nf4 = bytes("nf4", {}, 1).weights;
  EXPECT_LT(nf4, dense * 2 / 5);
  EXPECT_GT(nf4, dense / 4);
  EXPECT_LT(bytes("nf4", {.params = true}, 1).weights, nf4 / 2);
  EXPECT_LT(bytes("nf4", {}, 4).weights, nf4 / 2);
}

}  // namespace
}  // namespace hone
