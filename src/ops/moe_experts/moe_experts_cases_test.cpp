#include "ops/moe_experts/moe_experts_cases.h"

#include <cmath>

namespace hone::testing {

namespace {

constexpr float kScaling = 0.5f;
constexpr int64_t kRank = 2;
constexpr uint64_t kSeed = 42;

/// Adapter i of a case: its weights are arguments 4 + 2i and 5 + 2i.
struct AdapterSpec {
  bool down;
  int64_t out_begin, out_count;
  uint32_t stream_id;
};

std::vector<AdapterSpec> adapters_of(const MoeSizes& s, MoeLora lora) {
  const int64_t intermediate = s.intermediate;
  switch (lora) {
    case MoeLora::kNone:
      return {};
    case MoeLora::kSplit:
      return {{false, 0, intermediate, 5}, {false, intermediate, intermediate, 6}, {true, 0, s.hidden, 7}};
    case MoeLora::kShared:
      return {{false, 0, 2 * intermediate, 5}, {true, 0, s.hidden, 7}};
    case MoeLora::kDownOnly:
      return {{true, 0, s.hidden, 7}};
  }
  return {};
}

int64_t sample_of(int64_t token) { return 7 + token / 3; }
int32_t position_of(int64_t token) { return static_cast<int32_t>(token % 3); }

/// The experts in float64, one (token, expert) pair after the other.
struct Reference {
  MoeSizes s;
  std::vector<AdapterSpec> adapters;
  float dropout;
  std::vector<int32_t> ids;

  /// y += stack[e] · in for a stack [E, out, in].
  static void add_product(const Values& stack, int64_t e, const Values& in, double factor, double* y, int64_t out) {
    const auto n = static_cast<int64_t>(in.size());
    for (int64_t o = 0; o < out; ++o) {
      const double* row = stack.data() + (e * out + o) * n;
      for (int64_t i = 0; i < n; ++i) y[o] += factor * row[i] * in[static_cast<size_t>(i)];
    }
  }

  void add_adapters(bool down, const std::vector<Values>& a, int64_t t, int64_t e, const Values& in, Values& y) const {
    for (size_t i = 0; i < adapters.size(); ++i) {
      const AdapterSpec& spec = adapters[i];
      if (spec.down != down) continue;
      Values kept = in;
      const uint64_t key = lora_dropout_key(kSeed, spec.stream_id, static_cast<uint32_t>(e));
      for (size_t f = 0; dropout > 0 && f < kept.size(); ++f) {
        const auto keep = lora_keep(key, dropout, sample_of(t), position_of(t), static_cast<uint32_t>(f / 4));
        kept[f] *= static_cast<double>(keep[f % 4]) / (1 - static_cast<double>(dropout));
      }
      Values projected(kRank);
      add_product(a[4 + 2 * i], e, kept, 1, projected.data(), kRank);
      add_product(a[5 + 2 * i], e, projected, static_cast<double>(kScaling), y.data() + spec.out_begin, spec.out_count);
    }
  }

  Values operator()(const std::vector<Values>& a) const {
    Values out(static_cast<size_t>(s.tokens * s.hidden));
    for (int64_t choice = 0; choice < s.tokens * s.k; ++choice) {
      const int64_t t = choice / s.k, e = ids[static_cast<size_t>(choice)], width = s.intermediate;
      const Values x(a[0].begin() + t * s.hidden, a[0].begin() + (t + 1) * s.hidden);
      Values h(static_cast<size_t>(2 * width)), act(static_cast<size_t>(width)), y(static_cast<size_t>(s.hidden));
      add_product(a[2], e, x, 1, h.data(), 2 * width);
      add_adapters(false, a, t, e, x, h);
      for (size_t i = 0; i < act.size(); ++i) act[i] = h[i] / (1 + std::exp(-h[i])) * h[i + act.size()];
      add_product(a[3], e, act, 1, y.data(), s.hidden);
      add_adapters(true, a, t, e, act, y);
      for (size_t i = 0; i < y.size(); ++i) {
        out[static_cast<size_t>(t * s.hidden) + i] += a[1][static_cast<size_t>(choice)] * y[i];
      }
    }
    return out;
  }
};

}  // namespace

std::vector<int32_t> spread_routing(const MoeSizes& s) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t j = 0; j < s.k; ++j) ids.push_back(static_cast<int32_t>((3 * t + 1 + j) % s.experts));
  }
  return ids;
}

OpCase moe_case(const MoeSizes& s, const MoeOptions& options) {
  const std::vector<int32_t> ids = options.ids.empty() ? spread_routing(s) : options.ids;
  const std::vector<AdapterSpec> specs = adapters_of(s, options.lora);
  const auto size_one = [](int64_t in) { return 1 / std::sqrt(static_cast<double>(in)); };
  OpCase c;
  c.inputs = {random_argument({s.tokens, s.hidden}, 1, 1, options.x_trained),
              random_argument({s.tokens, s.k}, 2, 1, options.router_weights_trained)};
  c.weights = {
      random_argument({s.experts, 2 * s.intermediate, s.hidden}, 3, size_one(s.hidden), options.base_trained),
      random_argument({s.experts, s.hidden, s.intermediate}, 4, size_one(s.intermediate), options.base_trained)};
  for (const AdapterSpec& spec : specs) {
    const int64_t in = spec.down ? s.intermediate : s.hidden;
    c.weights.push_back(random_argument({s.experts, kRank, in}, 10 * spec.stream_id, size_one(in)));
    c.weights.push_back(random_argument({s.experts, spec.out_count, kRank}, 10 * spec.stream_id + 1));
  }

  std::vector<int64_t> samples;
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < s.tokens; ++t) {
    samples.push_back(sample_of(t));
    positions.push_back(position_of(t));
  }
  const auto ids_tensor = shared_tensor<int32_t>({s.tokens, s.k}, ids);
  const auto samples_tensor = shared_tensor<int64_t>({s.tokens}, samples);
  const auto positions_tensor = shared_tensor<int32_t>({s.tokens}, positions);
  StepScalars seeded;
  seeded.seed = kSeed;
  const auto scalars = std::make_shared<TestStruct<StepScalars>>(seeded);
  c.op = [=](Tape& tape, const std::vector<Var>& in, const std::vector<Weight*>& w) {
    ExpertAdapters adapters;
    for (size_t i = 0; i < specs.size(); ++i) {
      const Adapter adapter{.lora_a = w[2 + 2 * i],
                            .lora_b = w[3 + 2 * i],
                            .scaling = kScaling,
                            .dropout = options.dropout,
                            .stream_id = specs[i].stream_id};
      auto& list = specs[i].down ? adapters.down : adapters.gate_up;
      list.push_back({adapter, specs[i].out_begin, specs[i].out_count});
    }
    const Var ids_var = tape.input(*ids_tensor);
    return std::vector<Var>{moe_experts(tape, in[0], {ids_var, in[1]}, {w[0], w[1]}, adapters,
                                        {scalars->get(), *samples_tensor, *positions_tensor})};
  };
  c.reference = [=](const std::vector<Values>& a) {
    return std::vector<Values>{Reference{s, specs, options.dropout, ids}(a)};
  };
  return c;
}

}  // namespace hone::testing
