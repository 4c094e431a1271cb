#include "kernels/cpu/row_math/row_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <vector>

#include "core/base/philox.h"
#include "core/cpu/isa_testing.h"
#include "kernels/stochastic_rounding.h"

namespace hone {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kUlp = 0x1p-23;
const std::vector<int64_t> kLengths = {0, 1, 3, 16, 67, 1021};

std::vector<float> random_row(int64_t n, uint64_t key, float scale = 3.0f) {
  PhiloxSequence random(mix_key(77, key));
  std::vector<float> row(static_cast<size_t>(n));
  for (float& x : row) x = scale * random.normal();
  return row;
}

/// Runs `body` with the functions of each instruction set that this machine supports.
void for_each_isa(const std::function<void(const RowMath&)>& body) {
  for (const Isa isa : supported_isas()) {
    SCOPED_TRACE(name_of(isa));
    const ForcedIsa forced(isa);
    body(row_math());
  }
}

TEST(RowMath, ConvertsAsBFloat16Does) {
  for_each_isa([](const RowMath& math) {
    std::vector<float> x = random_row(1021, 1);
    x[0] = kInfinity, x[1] = -kInfinity, x[2] = std::nanf(""), x[3] = -0.0f, x[4] = 1.00390625f, x[5] = 3.4e38f;
    x[6] = 1e-39f, x[7] = -1e-45f, x[1020] = 9e-40f;  // below the smallest normal number
    std::vector<BFloat16> narrow(x.size());
    std::vector<float> wide(x.size()), rounded = x, both = x;
    std::vector<BFloat16> narrow_of_both(x.size());
    math.narrow(x.data(), narrow.data(), static_cast<int64_t>(x.size()));
    math.widen(narrow.data(), wide.data(), static_cast<int64_t>(x.size()));
    math.round(rounded.data(), static_cast<int64_t>(x.size()));
    math.round_and_narrow(both.data(), narrow_of_both.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(narrow[i].bits, BFloat16(x[i]).bits) << x[i];
      EXPECT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(static_cast<float>(narrow[i])));
      EXPECT_EQ(std::bit_cast<uint32_t>(rounded[i]), std::bit_cast<uint32_t>(wide[i]));
      EXPECT_EQ(std::bit_cast<uint32_t>(both[i]), std::bit_cast<uint32_t>(wide[i]));
      EXPECT_EQ(narrow_of_both[i].bits, narrow[i].bits);
    }
  });
}

TEST(RowMath, RandomWordsAreThoseOfPhilox) {
  for_each_isa([](const RowMath& math) {
    constexpr uint64_t kKey = 0x123456789abcdef0u;
    for (const uint64_t first : {uint64_t{0}, uint64_t{0xfffffff9u}}) {
      for (const int64_t groups : {1, 2, 7, 16, 33}) {
        for (const bool salted : {false, true}) {
          std::vector<uint32_t> words(static_cast<size_t>(4 * groups)), salts(static_cast<size_t>(groups));
          for (size_t i = 0; i < salts.size(); ++i) salts[i] = salted ? 0xdeadbeefu + static_cast<uint32_t>(i) : 0;
          math.random_words(kKey, first, 77, salted ? salts.data() : nullptr, words.data(), groups);
          for (size_t i = 0; i < salts.size(); ++i) {
            const uint64_t group = first + i;
            const auto want =
                philox(kKey, {static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), 77, salts[i]});
            for (size_t j = 0; j < 4; ++j) EXPECT_EQ(words[4 * i + j], want[j]) << group;
          }
        }
      }
    }
  });
}

TEST(RowMath, RoundsRandomlyAsItsBitsSay) {
  for_each_isa([](const RowMath& math) {
    std::vector<float> x = random_row(1021, 5);
    x[0] = kInfinity, x[1] = -kInfinity, x[2] = std::nanf(""), x[3] = -0.0f, x[4] = 3.4e38f, x[5] = 1e-41f;
    PhiloxSequence random(3);
    std::vector<uint32_t> words(x.size());
    for (uint32_t& word : words) word = random.next();
    std::vector<BFloat16> y(x.size());
    for (const int shift : {0, 16}) {
      math.narrow_randomly(x.data(), words.data(), shift, y.data(), static_cast<int64_t>(x.size()));
      for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i].bits, stochastic_bf16(x[i], words[i] >> shift)) << x[i];
    }
  });
}

TEST(RowMath, EveryCodeOfInt8IsItsNumberTimesTheScale) {
  for_each_isa([](const RowMath& math) {
    std::vector<int8_t> codes;
    for (int code = -128; code < 128; ++code) codes.push_back(static_cast<int8_t>(code));
    codes.push_back(-3);  // no whole vector
    std::vector<float> y(codes.size());
    for (const float scale : {1.0f, -0.37f, 3e38f, 1e-44f}) {
      math.scale_int8(scale, codes.data(), y.data(), static_cast<int64_t>(codes.size()));
      for (size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(y[i], static_cast<float>(codes[i]) * scale) << i;
    }
  });
}

/// Decodes a small float by definition: sign, exponent with a bias, mantissa, subnormal numbers at exponent 0.
double small_float(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1, mantissa_units = 1 << mantissa_bits;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double mantissa = static_cast<double>(code & static_cast<uint32_t>(mantissa_units - 1)) / mantissa_units;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias) : std::ldexp(1 + mantissa, exponent - bias);
  return code >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
}

TEST(RowMath, EveryCodeOfE4m3IsItsNumberTimesTheScale) {
  for_each_isa([](const RowMath& math) {
    std::vector<uint8_t> codes(256 + 3);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
    std::vector<float> y(codes.size());
    for (const float scale : {1.0f, -0.37f, 3e38f, 1e-44f}) {
      math.scale_e4m3(scale, codes.data(), y.data(), static_cast<int64_t>(codes.size()));
      for (size_t i = 0; i < codes.size(); ++i) {
        if ((codes[i] & 0x7f) == 0x7f) {
          EXPECT_TRUE(std::isnan(y[i])) << i;
        } else {
          const double want = small_float(codes[i], 4, 3) * static_cast<double>(scale);
          EXPECT_EQ(y[i], static_cast<float>(want)) << i;
          EXPECT_EQ(std::signbit(y[i]), std::signbit(want)) << i;
        }
      }
    }
  });
}

TEST(RowMath, EveryScaleAndCodeOfMxfp4) {
  for_each_isa([](const RowMath& math) {
    // Block b has scale b, and all codes twice.
    std::vector<uint8_t> scales(256), codes(256 * 16);
    for (size_t b = 0; b < 256; ++b) {
      scales[b] = static_cast<uint8_t>(b);
      for (size_t i = 0; i < 16; ++i) codes[16 * b + i] = static_cast<uint8_t>(i | (15 - i) << 4);
    }
    std::vector<float> y(256 * 32);
    math.scale_mxfp4(scales.data(), codes.data(), y.data(), static_cast<int64_t>(y.size()));
    for (size_t i = 0; i < y.size(); ++i) {
      const uint32_t code = i % 2 == 0 ? i % 32 / 2 : 15 - i % 32 / 2;
      const double want = std::ldexp(small_float(code, 2, 1), static_cast<int>(i / 32) - 127);
      if (i / 32 == 255) {
        EXPECT_TRUE(std::isnan(y[i])) << i;
      } else {
        EXPECT_EQ(y[i], static_cast<float>(want)) << i;
      }
    }
  });
}

TEST(RowMath, ElementwiseFunctionsWriteAllElements) {
  for_each_isa([](const RowMath& math) {
    for (int64_t n : kLengths) {
      const std::vector<float> x = random_row(n, 1), z = random_row(n, 2);
      std::vector<float> sum(x.size()), product(x.size()), scaled(x.size()), axpy = z;
      math.add(x.data(), z.data(), sum.data(), n);
      math.multiply(x.data(), z.data(), product.data(), n);
      math.scale(1.5f, x.data(), scaled.data(), n);
      math.add_scaled(-2.0f, x.data(), axpy.data(), n);
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(sum[i], x[i] + z[i]);
        EXPECT_EQ(product[i], x[i] * z[i]);
        EXPECT_EQ(scaled[i], 1.5f * x[i]);
        EXPECT_NEAR(axpy[i], z[i] - 2.0f * x[i], kUlp * (std::abs(z[i]) + 2 * std::abs(x[i])));
      }
    }
  });
}

TEST(RowMath, ReductionsMatchFloat64) {
  for_each_isa([](const RowMath& math) {
    for (int64_t n : kLengths) {
      const std::vector<float> x = random_row(n, 3), z = random_row(n, 4);
      double dot = 0, magnitude = 0, squares = 0;
      float largest = -kInfinity;
      for (size_t i = 0; i < x.size(); ++i) {
        dot += static_cast<double>(x[i]) * z[i];
        magnitude += std::abs(static_cast<double>(x[i]) * z[i]);
        squares += static_cast<double>(x[i]) * x[i];
        largest = std::max(largest, x[i]);
      }
      // A partial sum is a chain of at most n / 16 + 64 additions with one rounding of half a unit each.
      const int64_t chain = n / 16 + 64;
      EXPECT_NEAR(math.dot(x.data(), z.data(), n), dot, magnitude * kUlp / 2 * static_cast<double>(chain));
      EXPECT_NEAR(math.sum_squares(x.data(), n), squares, squares * 1e-13);
      EXPECT_EQ(math.maximum(x.data(), n), largest);
    }
    const std::vector<float> huge(40, 3e38f);
    EXPECT_TRUE(std::isfinite(math.sum_squares(huge.data(), 40)));
  });
}

TEST(RowMath, ExponentialIsAccurateOverItsWholeRange) {
  for_each_isa([](const RowMath& math) {
    std::vector<float> x;
    for (float v = -110.0f; v < 90.0f; v += 0.0137f) x.push_back(v);
    std::vector<float> y(x.size());
    math.scaled_exp(1.0f, 0.0f, x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      if (want > std::numeric_limits<float>::max()) {
        EXPECT_EQ(y[i], kInfinity) << x[i];
      } else {
        EXPECT_NEAR(y[i], want, std::max(want * 0x1p-22, 0x1p-149)) << x[i];
      }
    }
    std::vector<float> special = {-kInfinity, kInfinity, std::nanf(""), 0.0f, -1e30f, 1e30f};
    math.scaled_exp(1.0f, 0.0f, special.data(), special.data(), 6);
    EXPECT_EQ(special[0], 0.0f);
    EXPECT_EQ(special[1], kInfinity);
    EXPECT_TRUE(std::isnan(special[2]));
    EXPECT_EQ(special[3], 1.0f);
    EXPECT_EQ(special[4], 0.0f);
    EXPECT_EQ(special[5], kInfinity);
  });
}

TEST(RowMath, ExponentialSumsMatchFloat64) {
  for_each_isa([](const RowMath& math) {
    for (int64_t n : kLengths) {
      const std::vector<float> x = random_row(n, 5);
      const float shift = 4.0f;
      double sum = 0, weighted = 0, magnitude = 0;
      for (float v : x) {
        const double shifted = static_cast<double>(v) - shift, e = std::exp(shifted);
        sum += e;
        weighted += e * shifted;
        magnitude += e * std::abs(shifted);
      }
      const ExpSums sums = math.exp_sums(x.data(), shift, n);
      // Per term: 2 units from exp, and one from the argument (|shifted| < 16: 8 units of exp). Sums as for dot.
      const int64_t chain = n / 16 + 64;
      const double relative = kUlp * (10 + static_cast<double>(chain) / 2);
      EXPECT_NEAR(sums.sum, sum, sum * relative);
      EXPECT_NEAR(sums.weighted, weighted, magnitude * relative);
    }
  });
}

TEST(RowMath, SigmoidSiluAndItsSlopeMatchFloat64) {
  for_each_isa([](const RowMath& math) {
    for (int64_t n : kLengths) {
      const std::vector<float> x = random_row(n, 6, 20.0f);
      std::vector<float> y(x.size()), same(x.size()), slope(x.size()), sigmoid(x.size());
      math.sigmoid(x.data(), sigmoid.data(), n);
      math.silu(x.data(), y.data(), n);
      math.silu_and_slope(x.data(), same.data(), slope.data(), n);
      EXPECT_EQ(y, same);
      for (size_t i = 0; i < x.size(); ++i) {
        const double v = x[i], s = 1.0 / (1.0 + std::exp(-v));
        EXPECT_NEAR(sigmoid[i], s, 8 * kUlp * s);
        EXPECT_NEAR(y[i], v * s, 8 * kUlp * std::abs(v * s) + 1e-37);
        // 1 - s cancels if s is near 1: an error of a unit of 1, times x.
        EXPECT_NEAR(slope[i], s * (1 + v * (1 - s)), 8 * kUlp * s * (1 + std::abs(v))) << v;
      }
    }
  });
}

TEST(RowMath, GeluAndItsSlopeMatchFloat64) {
  for_each_isa([](const RowMath& math) {
    for (int64_t n : kLengths) {
      std::vector<float> x = random_row(n, 10, 4.0f);
      if (n > 67) x[0] = 1e30f, x[1] = -1e30f, x[2] = 0.0f, x[3] = 15.9f, x[4] = -15.9f;
      std::vector<float> y(x.size()), same(x.size()), slope(x.size());
      math.gelu(x.data(), y.data(), n);
      math.gelu_and_slope(x.data(), same.data(), slope.data(), n);
      EXPECT_EQ(y, same);
      for (size_t i = 0; i < x.size(); ++i) {
        const double v = x[i], factor = 2 * std::sqrt(2 / std::numbers::pi);
        const double s = 1 / (1 + std::exp(-factor * (v + 0.044715 * v * v * v)));
        const double inner = std::abs(v) < 16 ? factor * (1 + 3 * 0.044715 * v * v) : 0;
        // The argument of exp has an error of four units of its own size, up to where its results vanish.
        const double units = 8 + 4 * std::min(factor * (std::abs(v) + 0.044715 * std::abs(v * v * v)), 104.0);
        EXPECT_NEAR(y[i], v * s, units * kUlp * std::abs(v * s) + 1e-37) << v;
        EXPECT_NEAR(slope[i], s * (1 + v * (1 - s) * inner),
                    units * kUlp * (s + std::abs(v * s * (1 - s) * inner)) + 8 * kUlp * s * std::abs(v) * inner + 1e-36)
            << v;
      }
    }
  });
}

TEST(RowMath, ReluKeepsNan) {
  for_each_isa([](const RowMath& math) {
    std::vector<float> x = random_row(67, 11), y(67);
    x[5] = std::nanf(""), x[6] = -kInfinity, x[7] = kInfinity;
    math.relu(x.data(), y.data(), 67);
    for (size_t i = 0; i < x.size(); ++i) {
      if (i == 5) {
        EXPECT_TRUE(std::isnan(y[i]));
      } else {
        EXPECT_EQ(y[i], std::max(x[i], 0.0f));
      }
    }
  });
}

TEST(RowMath, GradientOfSwigluIsThatOfItsParts) {
  for_each_isa([](const RowMath& math) {
    constexpr float kFactor = -0.7f;
    for (int64_t n : kLengths) {
      const std::vector<float> gate = random_row(n, 7, 20.0f), up = random_row(n, 8), dy = random_row(n, 9);
      std::vector<float> y(gate.size()), dgate(gate.size()), dup(gate.size()), glu(gate.size()), slope(gate.size());
      math.swiglu_grad(kFactor, gate.data(), up.data(), dy.data(), y.data(), dgate.data(), dup.data(), n);
      math.silu_and_slope(gate.data(), glu.data(), slope.data(), n);
      for (size_t i = 0; i < gate.size(); ++i) {
        EXPECT_EQ(y[i], glu[i] * up[i]);
        EXPECT_NEAR(dup[i], kFactor * glu[i] * dy[i], 4 * kUlp * std::abs(dup[i]));
        // The slope's own error: a unit of 1, times the gate.
        const float largest = std::abs(kFactor * up[i] * dy[i]) * (1 + std::abs(gate[i]));
        EXPECT_NEAR(dgate[i], kFactor * slope[i] * up[i] * dy[i], 8 * kUlp * largest);
      }
    }
  });
}

}  // namespace
}  // namespace hone
