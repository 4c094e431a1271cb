#include "ops/moe_experts/moe_experts_testing.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/cpu/thread_pool.h"
#include "formats/int8_weights.h"
#include "formats/tiled_weights.h"

namespace hone::testing {

namespace {

constexpr float kScaling = 0.5f;
constexpr uint64_t kSeed = 42;

/// Adapter i of a case: its weights are arguments 4 + 2i and 5 + 2i.
struct AdapterSpec {
  bool down;
  int64_t out_begin, out_count;
  uint32_t stream_id;
};

std::vector<AdapterSpec> adapters_of(const MoeSizes& s, MoeLora lora, const MlpActivation& function) {
  const int64_t intermediate = s.intermediate;
  switch (lora) {
    case MoeLora::kNone:
      return {};
    case MoeLora::kSplit:
      if (!function.gated()) return {{false, 0, intermediate, 5}, {true, 0, s.hidden, 7}};
      return {{false, 0, intermediate, 5}, {false, intermediate, intermediate, 6}, {true, 0, s.hidden, 7}};
    case MoeLora::kShared:
      return {{false, 0, function.columns(intermediate), 5}, {true, 0, s.hidden, 7}};
    case MoeLora::kDownOnly:
      return {{true, 0, s.hidden, 7}};
  }
  return {};
}

int64_t sample_of(int64_t token) { return 7 + token / 3; }
int32_t position_of(int64_t token) { return static_cast<int32_t>(token % 3); }

/// The experts in float64, one (token, expert) pair at a time.
struct Reference {
  MoeSizes s;
  std::vector<AdapterSpec> adapters;
  int64_t rank;
  float dropout;
  std::vector<int32_t> ids;
  bool biases;
  MlpActivation function;

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
      Values projected(static_cast<size_t>(rank));
      add_product(a[4 + 2 * i], e, kept, 1, projected.data(), rank);
      add_product(a[5 + 2 * i], e, projected, static_cast<double>(kScaling), y.data() + spec.out_begin, spec.out_count);
    }
  }

  /// Index of the first bias argument.
  size_t first_bias() const { return 4 + 2 * adapters.size(); }

  void add_bias(const Values& bias, int64_t e, Values& y) const {
    for (size_t i = 0; biases && i < y.size(); ++i) y[i] += bias[static_cast<size_t>(e) * y.size() + i];
  }

  /// The activation of element i of an expert's h.
  double activate(const Values& h, size_t i) const {
    const double gate = h[i];
    if (function.kind == MlpActivation::Kind::kSquaredRelu) return gate > 0 ? gate * gate : 0;
    const double up = h[i + h.size() / 2];
    if (function.kind == MlpActivation::Kind::kSwiglu) return gate / (1 + std::exp(-gate)) * up;
    if (function.kind == MlpActivation::Kind::kGeglu) {
      const double inner = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
      return gate / 2 * (1 + std::tanh(inner)) * up;
    }
    const auto limit = static_cast<double>(function.limit), alpha = static_cast<double>(function.alpha);
    const double g = std::min(gate, limit);
    return (std::clamp(up, -limit, limit) + 1) * g / (1 + std::exp(-alpha * g));
  }

  /// h of a choice.
  Values gate_up(const std::vector<Values>& a, int64_t choice) const {
    const int64_t t = choice / s.k, e = ids[static_cast<size_t>(choice)];
    const Values x(a[0].begin() + t * s.hidden, a[0].begin() + (t + 1) * s.hidden);
    const int64_t columns = function.columns(s.intermediate);
    Values h(static_cast<size_t>(columns));
    add_product(a[2], e, x, 1, h.data(), columns);
    add_adapters(false, a, t, e, x, h);
    if (biases) add_bias(a[first_bias()], e, h);
    return h;
  }

  Values operator()(const std::vector<Values>& a) const {
    Values out(static_cast<size_t>(s.tokens * s.hidden));
    for (int64_t choice = 0; choice < s.tokens * s.k; ++choice) {
      const int64_t t = choice / s.k, e = ids[static_cast<size_t>(choice)], width = s.intermediate;
      const Values h = gate_up(a, choice);
      Values act(static_cast<size_t>(width)), y(static_cast<size_t>(s.hidden));
      for (size_t i = 0; i < act.size(); ++i) act[i] = activate(h, i);
      add_product(a[3], e, act, 1, y.data(), s.hidden);
      add_adapters(true, a, t, e, act, y);
      if (biases) add_bias(a[first_bias() + 1], e, y);
      for (size_t i = 0; i < y.size(); ++i) {
        out[static_cast<size_t>(t * s.hidden) + i] += a[1][static_cast<size_t>(choice)] * y[i];
      }
    }
    return out;
  }
};

/// A limit that clips about the largest quarter of the magnitudes in h and is in the widest gap among them: the
/// derivative jumps there, so rounding must not move a value across.
float limit_within(std::vector<double> magnitudes) {
  std::sort(magnitudes.begin(), magnitudes.end());
  const size_t begin = magnitudes.size() / 2, end = magnitudes.size() * 15 / 16;
  double middle = magnitudes.back() / 2, widest = 0;
  for (size_t i = begin; i < end; ++i) {
    const double gap = magnitudes[i + 1] - magnitudes[i];
    if (gap <= widest) continue;
    widest = gap;
    middle = magnitudes[i] + gap / 2;
  }
  return static_cast<float>(middle);
}

MlpActivation clamped_activation(const Reference& reference, const OpCase& c) {
  std::vector<Values> arguments;
  for (const auto* list : {&c.inputs, &c.weights}) {
    for (const Argument& argument : *list) arguments.push_back(argument.values);
  }
  std::vector<double> magnitudes;
  for (int64_t choice = 0; choice < reference.s.tokens * reference.s.k; ++choice) {
    for (double h : reference.gate_up(arguments, choice)) magnitudes.push_back(std::fabs(h));
  }
  return {MlpActivation::Kind::kClampedSwiglu, 1.702f, limit_within(std::move(magnitudes))};
}

/// Frozen weights that 8 bits and bfloat16 represent exactly, so that op and reference use the same: integers up to
/// 127, times a power of two per row, scaled to `scale`.
Argument int8_argument(Shape shape, uint64_t key, double scale) {
  Argument argument = random_argument(shape, key, 42, false);
  const int64_t columns = shape[2];
  const int exponent = std::ilogb(scale / 42);
  for (int64_t row = 0; row < shape[0] * shape[1]; ++row) {
    double* values = argument.values.data() + row * columns;
    for (int64_t k = 0; k < columns; ++k) values[k] = std::clamp(std::nearbyint(values[k]), -127.0, 127.0);
    values[row % columns] = row % 2 == 0 ? 127 : -127;
    for (int64_t k = 0; k < columns; ++k) values[k] = std::ldexp(values[k], exponent - static_cast<int>(row % 3));
  }
  return argument;
}

/// A frozen weight in its own format, as passed to ops. If it is packed, an expert has `parts` matrices, and the
/// argument gets the values that it was rounded to.
class FormattedWeight : public Weight {
 public:
  FormattedWeight(Argument& argument, const WeightFormat* format, int64_t parts, Fp8Recipe fp8)
      : shape_(argument.shape),
        fp8_(fp8),
        stack_(format->packed() ? Shape{parts * shape_[0], shape_[1] / parts, shape_[2]} : shape_),
        payload_(test_device(), argument.values.size() * sizeof(float) + 64 * static_cast<size_t>(stack_[0])),
        scales_(test_device(), static_cast<size_t>(shape_[0] * shape_[1]) * sizeof(float)) {
    std::vector<float> values(argument.values.begin(), argument.values.end());
    const FormatTensor payload = format->payload(stack_, DType::kBF16);
    view_ = {payload_.tensor(payload.shape, payload.dtype), format};
    if (const auto scales = format->scales(shape_)) view_.scales = scales_.tensor(scales->shape, scales->dtype);
    // Formats are written in host memory.
    const Buffer host_payload(Device{}, payload_.size()), host_scales(Device{}, scales_.size());
    EncodedWeight encoded{stack_, view_.payload, view_.scales};
    encoded.payload = host_payload.tensor(payload.shape, payload.dtype);
    if (view_.scales.defined()) encoded.scales = host_scales.tensor(view_.scales.shape, view_.scales.dtype);
    format->fill(encoded, 0, stack_[0] * stack_[1], values.data());
    copy_from_host(view_.payload, encoded.payload.data, encoded.payload.bytes());
    if (view_.scales.defined()) copy_from_host(view_.scales, encoded.scales.data, encoded.scales.bytes());
    if (!format->packed()) return;
    format->read(encoded, 0, stack_[0] * stack_[1], values.data());
    argument.values.assign(values.begin(), values.end());
  }
  const Shape& shape() const override { return shape_; }
  WeightView view() const override { return view_; }
  std::optional<PackedWeight> packed_view() const override {
    if (!view_.format->packed()) return std::nullopt;
    const auto& format = static_cast<const PackedFormat&>(*view_.format);
    return PackedWeight{format.layout(stack_[1], stack_[2]), view_.payload, dtype_, &format};
  }
  Fp8Products fp8() const override { return {.recipe = fp8_}; }
  bool wants_grad() const override { return false; }
  GradDest grad() override { return {}; }
  /// The dtype of its values, if it is packed.
  void take_dtype(DType dtype) { dtype_ = dtype; }

 private:
  Shape shape_;
  Fp8Recipe fp8_;
  Shape stack_;
  DType dtype_ = DType::kF32;
  Buffer payload_, scales_;
  WeightView view_;
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
  const MlpActivation function{options.activation};
  const std::vector<AdapterSpec> specs = adapters_of(s, options.lora, function);
  const int64_t columns = function.columns(s.intermediate);
  const auto size_one = [](int64_t in) { return 1 / std::sqrt(static_cast<double>(in)); };
  OpCase c;
  c.inputs = {random_argument({s.tokens, s.hidden}, 1, 1, options.x_trained),
              random_argument({s.tokens, s.k}, 2, 1, options.router_weights_trained)};
  const auto base = [&](Shape shape, uint64_t key) {
    const double scale = size_one(shape[2]);
    if (options.base_format == &int8_format()) return int8_argument(shape, key, scale);
    const bool dense = options.base_format == &dense_format();
    return random_argument(shape, key, scale, options.base_trained && dense);
  };
  c.weights = {base({s.experts, columns, s.hidden}, 3), base({s.experts, s.hidden, s.intermediate}, 4)};
  std::vector<std::shared_ptr<FormattedWeight>> formatted;
  for (Argument& weight : c.weights) {
    weight.takes_narrow_gradient = true;
    if (options.base_format == &dense_format()) continue;
    const int64_t parts = formatted.empty() ? columns / s.intermediate : 1;  // gate and up are matrices of their own
    formatted.push_back(std::make_shared<FormattedWeight>(weight, options.base_format, parts, options.fp8));
  }
  for (const AdapterSpec& spec : specs) {
    const int64_t in = spec.down ? s.intermediate : s.hidden;
    c.weights.push_back(random_argument({s.experts, options.rank, in}, 10 * spec.stream_id, size_one(in)));
    c.weights.push_back(random_argument({s.experts, spec.out_count, options.rank}, 10 * spec.stream_id + 1));
  }
  if (options.biases) {
    c.weights.push_back(random_argument({s.experts, columns}, 100, 0.5, options.biases_trained));
    c.weights.push_back(random_argument({s.experts, s.hidden}, 101, 0.5, options.biases_trained));
  }
  Reference reference{s, specs, options.rank, options.dropout, ids, options.biases, function};
  if (function.kind == MlpActivation::Kind::kClampedSwiglu) reference.function = clamped_activation(reference, c);

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
    for (const auto& weight : formatted) weight->take_dtype(tape.dtype(in[0]));
    const Var ids_var = tape.input(*ids_tensor);
    const ExpertWeights weights{.gate_up = formatted.empty() ? w[0] : formatted[0].get(),
                                .down = formatted.empty() ? w[1] : formatted[1].get(),
                                .gate_up_bias = options.biases ? w[w.size() - 2] : nullptr,
                                .down_bias = options.biases ? w[w.size() - 1] : nullptr,
                                .function = reference.function};
    return std::vector<Var>{moe_experts(tape, in[0], {ids_var, in[1]}, weights, adapters,
                                        {scalars->get(), *samples_tensor, *positions_tensor}, nullptr,
                                        options.token_tile)};
  };
  c.reference = [=](const std::vector<Values>& a) { return std::vector<Values>{reference(a)}; };
  return c;
}

}  // namespace hone::testing
