// The experts of libhone beside the formula in float64, and their gradients beside finite differences.
#include <gmock/gmock.h>
#include <hone/hone.h>

#include <cmath>
#include <memory>
#include <random>
#include <thread>

#include "core/base/dtype.h"
#include "core/text/json.h"

namespace hone {
namespace {

using testing::HasSubstr;

constexpr int64_t kExperts = 4, kHidden = 64, kInner = 64, kTokens = 9, kChoices = 2, kRank = 3;

using Numbers = std::vector<double>;

Numbers drawn(int64_t count, unsigned seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  Numbers numbers(static_cast<size_t>(count));
  for (double& number : numbers) number = static_cast<double>(BFloat16(static_cast<float>(normal(random))));
  return numbers;
}

template <class T>
std::vector<T> as(const Numbers& numbers) {
  std::vector<T> values;
  for (double number : numbers) values.emplace_back(static_cast<float>(number));
  return values;
}

struct FreesExperts {
  void operator()(hone_experts* experts) const { hone_experts_free(experts); }
};
using Layer = std::unique_ptr<hone_experts, FreesExperts>;

void expect_ok(int code, hone_error* error) {
  ASSERT_EQ(code, 0) << (error != nullptr ? hone_error_message(error) : "");
}

/// All numbers of a layer with adapters, and of an input.
struct Numeric {
  Numbers gate = drawn(kExperts * kInner * kHidden, 1, 0.1), up = drawn(kExperts * kInner * kHidden, 2, 0.1),
          down = drawn(kExperts * kHidden * kInner, 3, 0.1);
  std::map<std::string, Numbers> factors;
  Numbers x = drawn(kTokens * kHidden, 4, 1), weights = drawn(kTokens * kChoices, 5, 0.5),
          dout = drawn(kTokens * kHidden, 6, 1);
  std::vector<int64_t> ids;

  explicit Numeric(bool adapted) {
    for (int64_t i = 0; i < kTokens * kChoices; ++i)
      ids.push_back((i * 5 + i / 3) % (kExperts - 1));  // one has no rows
    if (!adapted) return;
    unsigned seed = 10;
    for (const char* part : {"gate", "up", "down"}) {
      factors[std::string(part) + ".lora_a"] = drawn(kExperts * kRank * kHidden, seed++, 0.2);
      factors[std::string(part) + ".lora_b"] = drawn(kExperts * kHidden * kRank, seed++, 0.2);
    }
  }

  /// y [n] += (W + 2 B A) x of an expert; all matrices here are [64, 64].
  Numbers product(const std::string& part, const Numbers& w, int64_t expert, const double* in) const {
    Numbers out(kHidden, 0);
    const auto at = [](const Numbers& values, int64_t e, int64_t rows, int64_t columns, int64_t i, int64_t j) {
      return values[static_cast<size_t>((e * rows + i) * columns + j)];
    };
    for (int64_t i = 0; i < kHidden; ++i) {
      for (int64_t j = 0; j < kHidden; ++j)
        out[static_cast<size_t>(i)] += at(w, expert, kHidden, kHidden, i, j) * in[j];
    }
    if (factors.empty()) return out;
    for (int64_t r = 0; r < kRank; ++r) {
      double narrow = 0;
      for (int64_t j = 0; j < kHidden; ++j)
        narrow += at(factors.at(part + ".lora_a"), expert, kRank, kHidden, r, j) * in[j];
      for (int64_t i = 0; i < kHidden; ++i) {
        out[static_cast<size_t>(i)] += 2 * at(factors.at(part + ".lora_b"), expert, kHidden, kRank, i, r) * narrow;
      }
    }
    return out;
  }

  Numbers output() const {
    Numbers out(x.size(), 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t j = 0; j < kChoices; ++j) {
        const auto choice = static_cast<size_t>(t * kChoices + j);
        const Numbers g = product("gate", gate, ids[choice], &x[static_cast<size_t>(t * kHidden)]),
                      u = product("up", up, ids[choice], &x[static_cast<size_t>(t * kHidden)]);
        Numbers inner(kInner);
        for (size_t i = 0; i < inner.size(); ++i) inner[i] = g[i] / (1 + std::exp(-g[i])) * u[i];
        const Numbers y = product("down", down, ids[choice], inner.data());
        for (size_t i = 0; i < y.size(); ++i) out[static_cast<size_t>(t * kHidden) + i] += weights[choice] * y[i];
      }
    }
    return out;
  }

  /// Σ dout · out, whose gradients the layer gives.
  double loss() const {
    const Numbers out = output();
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  }
};

template <class T>
Layer layer_of(const Numeric& numbers, const std::string& format) {
  const Json settings = {{"experts", kExperts},
                         {"hidden", kHidden},
                         {"intermediate", kInner},
                         {"dtype", sizeof(T) == 2 ? "bfloat16" : "float32"},
                         {"weight_dtype", format},
                         {"lora_r", numbers.factors.empty() ? 0 : kRank},
                         {"threads", 2}};
  hone_experts* made = nullptr;
  hone_error* error = nullptr;
  expect_ok(hone_experts_create(settings.dump().c_str(), &made, &error), error);
  Layer layer(made);
  const std::vector<T> gate = as<T>(numbers.gate), up = as<T>(numbers.up), down = as<T>(numbers.down);
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto first = static_cast<size_t>(e * kInner * kHidden);
    expect_ok(hone_experts_set(layer.get(), e, &gate[first], &up[first], &down[first], &error), error);
  }
  for (const auto& [name, values] : numbers.factors) {
    float* data = nullptr;
    int64_t shape[3];
    expect_ok(hone_experts_tensor(layer.get(), name.c_str(), &data, shape, &error), error);
    EXPECT_EQ(shape[0] * shape[1] * shape[2], static_cast<int64_t>(values.size())) << name;
    std::copy(values.begin(), values.end(), data);
  }
  return layer;
}

template <class T>
struct Passed {
  std::vector<T> out, dx;
  std::vector<float> dweights;
};

template <class T>
Passed<T> pass(hone_experts* layer, const Numeric& numbers, bool training) {
  const std::vector<T> x = as<T>(numbers.x), dout = as<T>(numbers.dout);
  const std::vector<float> weights = as<float>(numbers.weights);
  Passed<T> passed{std::vector<T>(x.size()), std::vector<T>(x.size()), std::vector<float>(weights.size())};
  hone_error* error = nullptr;
  expect_ok(hone_experts_forward(layer, kTokens, kChoices, x.data(), numbers.ids.data(), weights.data(),
                                 passed.out.data(), training, &error),
            error);
  if (training) {
    expect_ok(hone_experts_backward(layer, dout.data(), passed.dx.data(), passed.dweights.data(), &error), error);
  }
  expect_ok(hone_experts_sync(layer, &error), error);
  return passed;
}

template <class Values>
double relative_error(const Values& got, const Numbers& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = static_cast<double>(static_cast<float>(got[i])) - want[i];
    difference += error * error;
    size += want[i] * want[i];
  }
  return std::sqrt(difference / size);
}

TEST(LibraryExperts, ComputeTheFormulaInEachFormat) {
  for (const bool adapted : {false, true}) {
    const Numeric numbers(adapted);
    const Numbers want = numbers.output();
    EXPECT_LT(relative_error(pass<float>(layer_of<float>(numbers, "dtype").get(), numbers, false).out, want), 1e-6);
    // Roundings of bfloat16, and what a format costs normal numbers.
    for (const auto& [format, most] : std::vector<std::pair<std::string, double>>{
             {"dtype", 0.008}, {"int8", 0.02}, {"int4", 0.2}, {"nf4", 0.2}, {"fp8", 0.05}, {"mxfp4", 0.3}}) {
      const double error =
          relative_error(pass<BFloat16>(layer_of<BFloat16>(numbers, format).get(), numbers, false).out, want);
      EXPECT_LT(error, most) << format;
      EXPECT_GT(error, format == "dtype" ? 0 : most / 20) << format << " has its own rounding";
    }
  }
}

TEST(LibraryExperts, GradientsAreThoseOfFiniteDifferences) {
  Numeric numbers(true);
  const Layer layer = layer_of<float>(numbers, "dtype");
  const Passed<float> passed = pass<float>(layer.get(), numbers, true);
  const auto slope = [&](double& number) {
    const double before = number, step = 1e-5;
    number = before + step;
    const double above = numbers.loss();
    number = before - step;
    const double below = numbers.loss();
    number = before;
    return (above - below) / (2 * step);
  };
  for (size_t i = 0; i < numbers.x.size(); i += 37) EXPECT_NEAR(passed.dx[i], slope(numbers.x[i]), 1e-4) << "x " << i;
  for (size_t i = 0; i < numbers.weights.size(); ++i) {
    EXPECT_NEAR(passed.dweights[i], slope(numbers.weights[i]), 1e-4) << "weight " << i;
  }
  for (auto& [name, values] : numbers.factors) {
    float* gradient = nullptr;
    int64_t shape[3];
    expect_ok(hone_experts_tensor(layer.get(), (name + ".grad").c_str(), &gradient, shape, nullptr), nullptr);
    for (size_t i = 0; i < values.size(); i += 53) EXPECT_NEAR(gradient[i], slope(values[i]), 1e-4) << name << " " << i;
  }
}

TEST(LibraryExperts, GradientsOfAdaptersAddUpUntilTheyAreZeroed) {
  const Numeric numbers(true);
  const Layer layer = layer_of<float>(numbers, "dtype");
  float* gradient = nullptr;
  int64_t shape[3];
  expect_ok(hone_experts_tensor(layer.get(), "down.lora_b.grad", &gradient, shape, nullptr), nullptr);
  pass<float>(layer.get(), numbers, true);
  const float once = gradient[0];
  ASSERT_NE(once, 0.0f);
  pass<float>(layer.get(), numbers, false);  // without training: no gradient
  pass<float>(layer.get(), numbers, true);
  EXPECT_FLOAT_EQ(gradient[0], 2 * once);
  expect_ok(hone_experts_zero_grad(layer.get(), nullptr), nullptr);
  EXPECT_EQ(gradient[0], 0.0f);
  pass<float>(layer.get(), numbers, true);
  EXPECT_EQ(gradient[0], once) << "the same bits";
}

TEST(LibraryExperts, LayersShareTheirMemoryOfPasses) {
  const Numeric numbers(true);
  const Layer first = layer_of<float>(numbers, "dtype"), second = layer_of<float>(numbers, "dtype");
  const std::vector<float> x = as<float>(numbers.x), weights = as<float>(numbers.weights),
                           dout = as<float>(numbers.dout);
  const Passed<float> alone = pass<float>(first.get(), numbers, true);
  std::vector<float> out(x.size()), later(x.size()), dx(x.size()), dx_of_first(x.size());
  const auto forward = [&](const Layer& layer, int64_t tokens, std::vector<float>& to) {
    hone_error* error = nullptr;
    expect_ok(hone_experts_forward(layer.get(), tokens, kChoices, x.data(), numbers.ids.data(), weights.data(),
                                   to.data(), 1, &error),
              error);
  };
  forward(first, kTokens, out);  // as the layers of a model: forward, forward, backward, backward
  forward(second, kTokens - 2, later);
  expect_ok(hone_experts_backward(second.get(), dout.data(), dx.data(), nullptr, nullptr), nullptr);
  expect_ok(hone_experts_backward(first.get(), dout.data(), dx_of_first.data(), nullptr, nullptr), nullptr);
  expect_ok(hone_experts_sync(first.get(), nullptr), nullptr);
  EXPECT_EQ(out, alone.out);
  EXPECT_EQ(dx_of_first, alone.dx);
  EXPECT_TRUE(std::equal(later.begin(), later.begin() + 2 * kHidden, alone.out.begin())) << "a token's row is its own";
  std::thread other([&] { EXPECT_EQ(pass<float>(second.get(), numbers, true).out, alone.out); });
  EXPECT_EQ(pass<float>(first.get(), numbers, true).out, alone.out);
  other.join();
}

TEST(LibraryExperts, RefuseWhatTheyCannotCompute) {
  const Numeric numbers(false);
  const Layer layer = layer_of<float>(numbers, "dtype");
  hone_error* error = nullptr;
  const auto refusal = [&error](int code) {
    EXPECT_EQ(code, 2);
    const std::string text = error != nullptr ? hone_error_message(error) : "";
    hone_error_free(error);
    return text;
  };
  std::vector<float> rows(static_cast<size_t>(kTokens * kHidden));
  const std::vector<float> weights = as<float>(numbers.weights);
  std::vector<int64_t> ids = numbers.ids;
  ids[3] = kExperts;
  const auto forward = [&] {
    return hone_experts_forward(layer.get(), kTokens, kChoices, rows.data(), ids.data(), weights.data(), rows.data(), 0,
                                &error);
  };
  EXPECT_THAT(refusal(forward()), HasSubstr("token 1 chooses expert 4, of 4"));
  EXPECT_THAT(refusal(hone_experts_backward(layer.get(), rows.data(), nullptr, nullptr, &error)),
              HasSubstr("no forward"));
  float* data = nullptr;
  int64_t shape[3];
  EXPECT_THAT(refusal(hone_experts_tensor(layer.get(), "gate.lora_a", &data, shape, &error)),
              HasSubstr("no tensor 'gate.lora_a'"));
  EXPECT_THAT(refusal(hone_experts_set(layer.get(), kExperts, rows.data(), rows.data(), rows.data(), &error)),
              HasSubstr("no expert 4"));
  hone_experts* made = nullptr;
  const auto create = [&](const std::string& settings) {
    return refusal(hone_experts_create(settings.c_str(), &made, &error));
  };
  EXPECT_THAT(create(R"({"experts": 4, "hidden": 64})"), HasSubstr("'intermediate' is missing"));
  EXPECT_THAT(create(R"({"experts": 4, "hidden": 64, "intermediate": 64, "rank": 3})"),
              HasSubstr("'rank' is not a setting"));
  EXPECT_THAT(create(R"({"experts": 0, "hidden": 64, "intermediate": 64})"), HasSubstr("'experts'"));
  EXPECT_THAT(create(R"({"experts": 4, "hidden": 40, "intermediate": 64, "weight_dtype": "int8"})"),
              HasSubstr("cannot be held in int8"));
  EXPECT_THAT(create(R"({"experts": 4, "hidden": 64, "intermediate": 64, "weight_dtype": "int3"})"),
              HasSubstr("'int3' is not a format"));
}

}  // namespace
}  // namespace hone
