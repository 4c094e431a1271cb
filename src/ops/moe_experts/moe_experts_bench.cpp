#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/philox.h"
#include "formats/int8_weights.h"
#include "kernels/op_bench.h"
#include "ops/moe_experts/moe_experts.h"

namespace hone {

namespace {

constexpr int64_t kLoraRank = 16;

/// k different experts per token; expert e has weight (e + 1)^-zipf: the k largest of log weight + Gumbel noise.
std::vector<int32_t> choose_experts(int64_t tokens, int64_t experts, int64_t k, double zipf) {
  PhiloxSequence random(17);
  std::vector<int32_t> ids, order(static_cast<size_t>(experts));
  std::vector<double> score(order.size());
  for (int64_t t = 0; t < tokens; ++t) {
    for (size_t e = 0; e < score.size(); ++e) {
      const double uniform = (static_cast<double>(random.next()) + 0.5) * 0x1p-32;
      score[e] = -std::log(-std::log(uniform)) - zipf * std::log(static_cast<double>(e + 1));
    }
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
      return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
    });
    ids.insert(ids.end(), order.begin(), order.begin() + k);
  }
  return ids;
}

enum class Training { kFull, kLora, kLoraInt8, kLoraPacked };

struct Variant {
  std::string name;
  double zipf = 0;
  Training training = Training::kFull;
  bool nodes = false;                    ///< also a part for each node
  const PackedFormat* format = nullptr;  ///< the format in kLoraPacked
};

/// Experts with given routing, and the layer as a whole, with the model FLOPs of forward times three (with LoRA two).
OpCase layer(BenchData& data, const Variant& variant) {
  const BenchSizes& sizes = data.sizes;
  const int64_t experts = sizes.experts.count, k = sizes.experts.chosen, inner = sizes.experts.intermediate;
  const int64_t tokens = sizes.tokens, hidden = sizes.hidden, columns = sizes.activation.columns(inner);
  const bool full = variant.training == Training::kFull, int8 = variant.training == Training::kLoraInt8;
  const auto x = data.input(hidden), weights = data.input(k);
  const Tensor ids = data.upload({tokens, k}, choose_experts(tokens, experts, k, variant.zipf));
  const auto base = [&](Shape shape, int64_t parts) -> Weight& {
    if (variant.format != nullptr) return data.packed_weight(shape, *variant.format, parts);
    if (full) return data.weight(shape, sizes.dtype, true);
    return int8 ? data.int8_weight(shape) : data.frozen_weight(shape, sizes.dtype);
  };
  Weight &gate_up = base({experts, columns, hidden}, columns / inner), &down = base({experts, hidden, inner}, 1);
  ExpertAdapters adapters;
  const auto adapt = [&](std::vector<ExpertAdapter>& list, int64_t in, int64_t begin, int64_t out) {
    Weight& a = data.weight({experts, kLoraRank, in}, DType::kF32, true);
    Weight& b = data.weight({experts, out, kLoraRank}, DType::kF32, true);
    list.push_back({{.lora_a = &a, .lora_b = &b, .scaling = 2.0f}, begin, out});
  };
  if (!full) {
    for (int64_t begin = 0; begin < columns; begin += inner) adapt(adapters.gate_up, hidden, begin, inner);
    adapt(adapters.down, inner, 0, hidden);
  }
  const auto rows = static_cast<double>(tokens * k);
  const double up_weights = static_cast<double>(experts * columns * hidden);
  const double down_weights = static_cast<double>(experts * inner * hidden);
  const double size = sizes.element_bytes(), h = size * rows * static_cast<double>(columns);
  const double act = size * rows * static_cast<double>(inner), y = sizes.bytes(hidden);
  const std::string shape = fmt::format("[{}, {}], {} of {} × {}", tokens, hidden, k, experts, inner);
  OpCase result;
  if (variant.nodes) {
    result.parts = {{"moe_permutation", shape, "moe_permutation", "forward", 16 * rows},
                    {"moe_gate_up", shape, "moe_gate_up", "forward", y + h + size * up_weights, 1},
                    {"moe_down", shape, "moe_down", "forward", act + y + size * down_weights, 1},
                    {"moe_down grad", shape, "moe_down", "backward", 2 * h + y + (size + 4) * down_weights, 2},
                    {"moe_gate_up grad", shape, "moe_gate_up", "backward", h + 2 * y + (size + 4) * up_weights, 2}};
  }
  // A frozen base is read in forward and backward; the rest as for the nodes above, without gradients of weights.
  const auto packed_bytes = [&](const Weight& weight) {
    const auto packed = weight.packed_view();
    return packed ? static_cast<double>(packed->chunks.bytes()) : 0.0;
  };
  const double weight_bytes = variant.format != nullptr ? packed_bytes(gate_up) + packed_bytes(down)
                                                        : (int8 ? 1 : size) * (up_weights + down_weights);
  const double bytes = full ? 0 : 2 * weight_bytes + 4 * h + act + 5 * y;
  result.parts.push_back({variant.name, shape, "step", "", bytes, full ? 3.0 : 2.0, int8});
  result.record = [=, &gate_up, &down](Tape& tape) {
    return moe_experts(tape, x(tape), {tape.input(ids), weights(tape)},
                       {.gate_up = &gate_up, .down = &down, .function = sizes.activation}, adapters);
  };
  result.gradient = data.activations(hidden);
  return result;
}

enum class DecodePart { kPermutation, kGateUp, kDown, kLayer };

/// A part of the forward pass of decode, with experts chosen evenly at random.
OpCase decode_part(BenchData& data, DecodePart part) {
  const BenchSizes& sizes = data.sizes;
  const int64_t experts = sizes.experts.count, k = sizes.experts.chosen, inner = sizes.experts.intermediate;
  const int64_t tokens = sizes.tokens, hidden = sizes.hidden, columns = sizes.activation.columns(inner);
  const Tensor ids = data.upload({tokens, k}, choose_experts(tokens, experts, k, 0));
  const auto int32s = [&](Shape shape) { return data.take(shape, DType::kI32); };
  const ExpertRows rows{.offsets = data.take({experts + 1}, DType::kI64),
                        .token = int32s({tokens * k}),
                        .assignment = int32s({tokens * k}),
                        .row = int32s({tokens, k})};
  {
    Arena scratch(data.stream().device(), "permutation");
    const auto sort = [&] { moe_permutation(Context(data.stream(), scratch), {.ids = ids, .rows = rows}); };
    sort();
    scratch.reserve(scratch.high_water());
    sort();
    data.stream().synchronize();
  }
  const auto of_rows = [&](int64_t width) { return data.random({tokens * k, width}, sizes.dtype); };
  const Tensor x = data.activations(hidden), weights = data.activations(k);
  const bool gate_up = part == DecodePart::kGateUp || part == DecodePart::kLayer;
  const bool down = part == DecodePart::kDown || part == DecodePart::kLayer;
  Weight* first = gate_up ? &data.frozen_weight({experts, columns, hidden}, sizes.dtype) : nullptr;
  Weight* second = down ? &data.frozen_weight({experts, hidden, inner}, sizes.dtype) : nullptr;
  const Tensor h = of_rows(columns), activation = of_rows(inner), out = data.activations(hidden);
  OpCase result;
  OpPart row{"", fmt::format("[{}, {}], {} of {} × {}", tokens, hidden, k, experts, inner), "", ""};
  std::vector<bool> used(static_cast<size_t>(experts));
  for (const int32_t id : choose_experts(tokens, experts, k, 0)) used[static_cast<size_t>(id)] = true;
  const double matrix = sizes.element_bytes() * static_cast<double>(inner * hidden) *
                        static_cast<double>(std::count(used.begin(), used.end(), true));
  if (gate_up) row.bytes += matrix * static_cast<double>(columns) / static_cast<double>(inner);
  if (down) row.bytes += matrix;
  result.parts = {row};
  result.record = [=, function = sizes.activation](Tape& tape) {
    const Context& context = tape.context();
    if (part == DecodePart::kPermutation) moe_permutation(context, {.ids = ids, .rows = rows});
    if (part == DecodePart::kGateUp) {
      moe_gate_up(context, {.rows = rows,
                            .x = x,
                            .weight = first->view(),
                            .adapters = {},
                            .dropout = {},
                            .function = function,
                            .xa = {},
                            .h = h,
                            .activation = activation,
                            .decode = true});
    }
    if (part == DecodePart::kDown) {
      moe_down(context, {.rows = rows,
                         .activation = activation,
                         .weights = weights,
                         .weight = second->view(),
                         .adapters = {},
                         .dropout = {},
                         .out = out,
                         .decode = true});
    }
    if (part != DecodePart::kLayer) return Var{};
    return moe_experts(tape, tape.input(x), {tape.input(ids), tape.input(weights)},
                       {.gate_up = first, .down = second, .function = function});
  };
  return result;
}

}  // namespace

void moe_experts_cases(OpCases& cases) {
  const BenchSizes& sizes = cases.sizes;
  if (sizes.experts.count == 0) return;
  const auto add = [&](std::vector<std::string> names, const Variant& variant) {
    names.push_back(variant.name);
    cases.add(OpGroup::kExperts, std::move(names), [=](BenchData& data) { return layer(data, variant); });
  };
  const auto add_decode = [&](const char* name, DecodePart part) {
    cases.add_decode(OpGroup::kExperts, name, [=](BenchData& data) { return decode_part(data, part); });
  };
  add_decode("moe_permutation", DecodePart::kPermutation);
  add_decode("moe_gate_up", DecodePart::kGateUp);
  add_decode("moe_down", DecodePart::kDown);
  add_decode("moe layer", DecodePart::kLayer);
  add({"moe_permutation", "moe_gate_up", "moe_down", "moe_down grad", "moe_gate_up grad"},
      {.name = "moe layer", .nodes = true});
  add({}, {.name = "moe layer, Zipf", .zipf = 1});
  add({}, {.name = "moe layer, LoRA", .training = Training::kLora});
  const Shape down{1, sizes.hidden, sizes.experts.intermediate};  // if it fits, so do gate and up
  if (sizes.device == DeviceKind::kCpu && fits_int8(down)) {
    add({}, {.name = "moe layer, LoRA, int8", .training = Training::kLoraInt8});
  }
  if (sizes.device != DeviceKind::kCpu) return;
  for (const PackedFormat* format : {&int4_format(32), &int4_format(128), &mxfp4_format(), &fp8_format()}) {
    if (!format->fits(down) || !format->fits({1, sizes.experts.intermediate, sizes.hidden})) continue;
    const std::string name = fmt::format("moe layer, LoRA, {}", format->name());
    add({}, {.name = name, .training = Training::kLoraPacked, .format = format});
  }
}

}  // namespace hone
