#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "app/bench/op_case.h"
#include "core/philox.h"
#include "core/profiler.h"
#include "formats/int8_weights.h"
#include "ops/adafactor/adafactor.h"
#include "ops/adamw/adamw.h"
#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/causal_conv/causal_conv.h"
#include "ops/embedding/embedding.h"
#include "ops/gated_delta_rule/gated_delta_rule.h"
#include "ops/gated_rms_norm/gated_rms_norm.h"
#include "ops/latent_heads/latent_heads.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/moe_experts/moe_experts.h"
#include "ops/momentum/momentum.h"
#include "ops/qk_norm_rope/qk_norm_rope.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/router/router.h"
#include "ops/swiglu/swiglu.h"

namespace hone {

namespace {

constexpr int64_t kLoraRank = 16;

/// What the cases below share.
struct Maker {
  DecoderConfig config;
  OpSizes sizes;

  int64_t tokens() const { return sizes.tokens; }
  int64_t hidden() const { return config.hidden_size; }
  double element() const { return static_cast<double>(size_of(sizes.dtype)); }
  /// Bytes of [T, width] in the dtype of activations.
  double rows(int64_t width) const { return element() * static_cast<double>(tokens() * width); }
  bool latent() const { return config.layers.front().mixer == MixerKind::kLatentAttention; }
  std::string shape(int64_t width) const { return fmt::format("[{}, {}]", tokens(), width); }
  Tensor activations(BenchData& data, int64_t width) const { return data.random({tokens(), width}, sizes.dtype); }
  /// A value with a gradient, made anew on each tape.
  std::function<Var(Tape&)> input(BenchData& data, int64_t width) const {
    const Tensor x = activations(data, width), dx = data.take(x.shape, x.dtype);
    return [x, dx](Tape& tape) { return tape.input(x, dx); };
  }
};

OpCase rms_norm_case(const Maker& m, BenchData& data) {
  const auto x = m.input(data, m.hidden());
  Weight& w = data.weight({m.hidden()}, m.sizes.dtype, true);
  OpCase result;
  const std::string shape = m.shape(m.hidden());
  result.parts = {{"rms_norm", shape, "rms_norm", "forward", 0, 2 * m.rows(m.hidden())},
                  {"rms_norm grad", shape, "rms_norm", "backward", 0, 3 * m.rows(m.hidden())}};
  result.record = [=, &w](Tape& tape) { return rms_norm(tape, x(tape), w, 1e-6f); };
  result.gradient = m.activations(data, m.hidden());
  return result;
}

OpCase add_rms_norm_case(const Maker& m, BenchData& data) {
  const auto x = m.input(data, m.hidden()), delta = m.input(data, m.hidden());
  Weight& w = data.weight({m.hidden()}, m.sizes.dtype, true);
  OpCase result;
  // Both nodes are reported by the step: where the sum is taken is the op's business.
  result.parts = {{"add_rms_norm with grad", m.shape(m.hidden()), "step", "", 0, 9 * m.rows(m.hidden())}};
  result.record = [=, &w](Tape& tape) { return add_rms_norm(tape, x(tape), delta(tape), w, 1e-6f).y; };
  result.gradient = m.activations(data, m.hidden());
  return result;
}

OpCase add_case(const Maker& m, BenchData& data) {
  const auto a = m.input(data, m.hidden()), b = m.input(data, m.hidden());
  OpCase result;
  result.parts = {{"add", m.shape(m.hidden()), "add", "forward", 0, 3 * m.rows(m.hidden())}};
  result.record = [=](Tape& tape) { return add(tape, a(tape), b(tape)); };
  result.gradient = m.activations(data, m.hidden());
  return result;
}

std::vector<int32_t> positions_of(const OpSizes& sizes) {
  std::vector<int32_t> positions(static_cast<size_t>(sizes.tokens));
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<int32_t>(static_cast<int64_t>(i) % sizes.seq);
  return positions;
}

OpCase qk_norm_rope_case(const Maker& m, BenchData& data) {
  const int64_t width = m.config.num_attention_heads * m.config.head_dim, half = m.config.rope.rotary_dim / 2;
  const auto x = m.input(data, width);
  Weight* norm = m.config.qk_norm ? &data.weight({m.config.head_dim}, m.sizes.dtype, true) : nullptr;
  RopeTableValues values = rope_table_values(rope_frequencies(m.config.rope, m.sizes.seq), m.sizes.seq);
  const RopeTable table{.cos = data.upload({m.sizes.seq, half}, std::move(values.cos)),
                        .sin = data.upload({m.sizes.seq, half}, std::move(values.sin))};
  const Tensor positions = data.upload({m.tokens()}, positions_of(m.sizes));
  const int64_t head_dim = m.config.head_dim;
  RotaryLayout layout;
  if (m.latent()) {
    layout = {.offset = m.config.latent.qk_nope_head_dim, .interleaved = m.config.latent.rope_interleave};
  }
  OpCase result;
  result.parts = {{"qk_norm_rope", m.shape(width), "qk_norm_rope", "forward", 0, 2 * m.rows(width)},
                  {"qk_norm_rope grad", m.shape(width), "qk_norm_rope", "backward", 0, 3 * m.rows(width)}};
  result.record = [=](Tape& tape) {
    return qk_norm_rope(tape, x(tape), norm, 1e-6f, table, positions, head_dim, layout);
  };
  result.gradient = m.activations(data, width);
  return result;
}

LatentHeadSizes latent_sizes(const DecoderConfig& config) {
  return {.heads = config.num_attention_heads,
          .nope_dim = config.latent.qk_nope_head_dim,
          .rope_dim = config.latent.qk_rope_head_dim,
          .v_dim = config.latent.v_head_dim};
}

/// Keys and values, given or (with latent attention) assembled first, whose parts are then added.
std::function<KeysAndValues(Tape&)> keys_and_values(const Maker& m, BenchData& data, std::vector<OpPart>& parts) {
  const int64_t kv_heads = m.config.num_key_value_heads;
  if (!m.latent()) {
    const auto k = m.input(data, kv_heads * m.config.head_dim), v = m.input(data, kv_heads * m.config.v_head_dim);
    return [=](Tape& tape) { return KeysAndValues{k(tape), v(tape)}; };
  }
  const LatentHeadSizes sizes = latent_sizes(m.config);
  const auto kv = m.input(data, sizes.kv_width()), shared = m.input(data, sizes.rope_dim);
  const double bytes = m.rows(sizes.kv_width() + sizes.rope_dim + sizes.k_width() + sizes.v_width());
  const std::string shape = m.shape(sizes.k_width() + sizes.v_width());
  parts.push_back({"latent_heads", shape, "latent_heads", "forward", 0, bytes});
  parts.push_back({"latent_heads grad", shape, "latent_heads", "backward", 0, bytes});
  return [=](Tape& tape) { return latent_heads(tape, kv(tape), shared(tape), sizes); };
}

/// Documents of `seq` tokens, the last one perhaps shorter.
PackedSequences sequences_of(const OpSizes& sizes, BenchData& data) {
  std::vector<int32_t> starts;
  for (int64_t row = 0; row < sizes.tokens; row += sizes.seq) starts.push_back(static_cast<int32_t>(row));
  starts.push_back(static_cast<int32_t>(sizes.tokens));
  const auto documents = static_cast<int64_t>(starts.size()) - 1;
  return {.cu_seqlens = data.upload({documents + 1}, std::move(starts)),
          .num_documents = documents,
          .max_seqlen = sizes.seq};
}

OpCase attention_case(const Maker& m, BenchData& data) {
  const int64_t heads = m.config.num_attention_heads, kv_heads = m.config.num_key_value_heads;
  const int64_t dim = m.config.head_dim, v_dim = m.config.v_head_dim;
  const auto q = m.input(data, heads * dim);
  const AttentionOptions options{.num_heads = heads,
                                 .num_kv_heads = kv_heads,
                                 .head_dim = dim,
                                 .v_head_dim = v_dim,
                                 .scale = 1.0f / std::sqrt(static_cast<float>(dim))};
  const PackedSequences sequences = sequences_of(m.sizes, data);
  // q·k and p·v over half the positions; backward has five such products where forward has two.
  const double flops = static_cast<double>(m.tokens() * m.sizes.seq * heads * (dim + v_dim));
  const double bytes = m.rows((heads + kv_heads) * (dim + v_dim));
  const std::string head = dim == v_dim ? std::to_string(dim) : fmt::format("{} and {}", dim, v_dim);
  const std::string shape =
      fmt::format("{} × {}, {} / {} heads of {}", sequences.num_documents, m.sizes.seq, heads, kv_heads, head);
  OpCase result;
  result.parts = {{"attention", shape, "attention", "forward", flops, bytes},
                  {"attention grad", shape, "attention", "backward", 2.5 * flops, 2 * bytes}};
  const auto kv = keys_and_values(m, data, result.parts);
  result.record = [=](Tape& tape) {
    const auto [k, v] = kv(tape);
    return attention(tape, q(tape), k, v, options, sequences);
  };
  result.gradient = m.activations(data, heads * v_dim);
  return result;
}

OpCase causal_conv_case(const Maker& m, BenchData& data) {
  const int64_t width = m.config.delta_net.heads.width();
  const auto x = m.input(data, width);
  Weight& w = data.weight({width, 1, m.config.delta_net.conv_taps}, m.sizes.dtype, true);
  const PackedSequences sequences = sequences_of(m.sizes, data);
  OpCase result;
  result.parts = {{"causal_conv", m.shape(width), "causal_conv", "forward", 0, 2 * m.rows(width)},
                  {"causal_conv grad", m.shape(width), "causal_conv", "backward", 0, 3 * m.rows(width)}};
  result.record = [=, &w](Tape& tape) { return causal_conv(tape, x(tape), w, sequences); };
  result.gradient = m.activations(data, width);
  return result;
}

OpCase gated_delta_rule_case(const Maker& m, BenchData& data) {
  const DeltaHeads& heads = m.config.delta_net.heads;
  const int64_t out = heads.num_value_heads * heads.value_dim;
  const auto qkv = m.input(data, heads.width()), a = m.input(data, heads.num_value_heads),
             b = m.input(data, heads.num_value_heads);
  Weight& a_log = data.weight({heads.num_value_heads}, m.sizes.dtype, true);
  Weight& dt_bias = data.weight({heads.num_value_heads}, m.sizes.dtype, true);
  const PackedSequences sequences = sequences_of(m.sizes, data);
  // Of each token and value head, as products with a chunk's other tokens and with the state: k·k, q·k, T k, T v, P v;
  // W S, q S, k V. Backward has both scans again and eleven more of the former and three of the latter.
  const auto state = static_cast<double>(heads.key_dim * heads.value_dim);
  const double chunk = static_cast<double>(kDeltaChunk) * static_cast<double>(heads.key_dim);
  const double pairs = 2.0 * static_cast<double>(m.tokens() * heads.num_value_heads);
  const double bytes = m.rows(heads.width() + out);
  const std::string shape = fmt::format("{} × {}, {} / {} heads of {}", sequences.num_documents, m.sizes.seq,
                                        heads.num_key_heads, heads.num_value_heads, heads.key_dim);
  OpCase result;
  result.parts = {
      {"gated_delta_rule", shape, "gated_delta_rule", "forward", pairs * (5 * chunk + 3 * state), bytes},
      {"gated_delta_rule grad", shape, "gated_delta_rule", "backward", pairs * (16 * chunk + 8 * state), 2 * bytes}};
  result.record = [=, &a_log, &dt_bias](Tape& tape) {
    return gated_delta_rule(tape, {qkv(tape), a(tape), b(tape), &a_log, &dt_bias}, heads, sequences);
  };
  result.gradient = m.activations(data, out);
  return result;
}

OpCase gated_rms_norm_case(const Maker& m, BenchData& data) {
  const DeltaHeads& heads = m.config.delta_net.heads;
  const int64_t width = heads.num_value_heads * heads.value_dim;
  const auto x = m.input(data, width), z = m.input(data, width);
  Weight& w = data.weight({heads.value_dim}, m.sizes.dtype, true);
  OpCase result;
  result.parts = {{"gated_rms_norm", m.shape(width), "gated_rms_norm", "forward", 0, 3 * m.rows(width)},
                  {"gated_rms_norm grad", m.shape(width), "gated_rms_norm", "backward", 0, 5 * m.rows(width)}};
  result.record = [=, &w](Tape& tape) { return gated_rms_norm(tape, x(tape), z(tape), w, 1e-6f); };
  result.gradient = m.activations(data, width);
  return result;
}

OpCase swiglu_case(const Maker& m, BenchData& data) {
  const int64_t width = m.config.layers.front().intermediate_size;
  const auto gate = m.input(data, width), up = m.input(data, width);
  OpCase result;
  result.parts = {{"swiglu", m.shape(width), "swiglu", "forward", 0, 3 * m.rows(width)},
                  {"swiglu grad", m.shape(width), "swiglu", "backward", 0, 5 * m.rows(width)}};
  result.record = [=](Tape& tape) { return swiglu(tape, gate(tape), up(tape)); };
  result.gradient = m.activations(data, width);
  return result;
}

OpCase router_case(const Maker& m, BenchData& data) {
  const int64_t experts = m.config.moe.num_experts;
  const auto x = m.input(data, m.hidden());
  Weight& w = data.weight({experts, m.hidden()}, m.sizes.dtype, true);
  RouterOptions options;
  options.top_k = m.config.moe.num_experts_per_tok;
  options.rule = m.config.moe.router;
  const double flops = 2.0 * static_cast<double>(m.tokens() * m.hidden() * experts);
  const std::string shape = fmt::format("[{}, {}] → {} of {}", m.tokens(), m.hidden(), options.top_k, experts);
  OpCase result;
  result.parts = {{"router", shape, "router", "forward", flops, m.rows(m.hidden())},
                  {"router grad", shape, "router", "backward", 3 * flops, 2 * m.rows(m.hidden())}};
  result.record = [=, &w](Tape& tape) { return router(tape, x(tape), {.weight = &w}, options).weights; };
  result.gradient = m.activations(data, options.top_k);
  return result;
}

/// k different experts of each token; expert e is preferred as (e + 1)^-zipf: the k largest of log preference + Gumbel.
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

enum class Training { kFull, kLora, kLoraInt8 };

/// Experts with routing given. Parts: the nodes, if `nodes`, and the layer as a whole, whose model FLOPs are those of
/// forward three times (with LoRA twice).
OpCase moe_case(const Maker& m, BenchData& data, const std::string& name, double zipf, Training training, bool nodes) {
  const int64_t experts = m.config.moe.num_experts, k = m.config.moe.num_experts_per_tok;
  const int64_t inner = m.config.moe.moe_intermediate_size, tokens = m.tokens(), hidden = m.hidden();
  const bool full = training == Training::kFull;
  const auto x = m.input(data, hidden), weights = m.input(data, k);
  const Tensor ids = data.upload({tokens, k}, choose_experts(tokens, experts, k, zipf));
  const auto base = [&](Shape shape) -> Weight& {
    if (full) return data.weight(shape, m.sizes.dtype, true);
    return training == Training::kLora ? data.frozen_weight(shape, m.sizes.dtype) : data.int8_weight(shape);
  };
  Weight &gate_up = base({experts, 2 * inner, hidden}), &down = base({experts, hidden, inner});
  ExpertAdapters adapters;
  const auto adapt = [&](std::vector<ExpertAdapter>& list, int64_t in, int64_t begin, int64_t out) {
    Weight& a = data.weight({experts, kLoraRank, in}, DType::kF32, true);
    Weight& b = data.weight({experts, out, kLoraRank}, DType::kF32, true);
    list.push_back({{.lora_a = &a, .lora_b = &b, .scaling = 2.0f}, begin, out});
  };
  if (!full) {
    adapt(adapters.gate_up, hidden, 0, inner);
    adapt(adapters.gate_up, hidden, inner, inner);
    adapt(adapters.down, inner, 0, hidden);
  }
  const auto rows = static_cast<double>(tokens * k);
  const double up_weights = static_cast<double>(experts * 2 * inner * hidden), down_weights = up_weights / 2;
  const double up_flops = 4 * rows * static_cast<double>(hidden * inner), down_flops = up_flops / 2;
  const double size = m.element(), h = size * rows * 2 * static_cast<double>(inner), y = m.rows(hidden);
  const std::string shape = fmt::format("[{}, {}], {} of {} × {}", tokens, hidden, k, experts, inner);
  OpCase result;
  if (nodes) {
    result.parts = {
        {"moe_permutation", shape, "moe_permutation", "forward", 0, 16 * rows},
        {"moe_gate_up", shape, "moe_gate_up", "forward", up_flops, y + h + size * up_weights},
        {"moe_down", shape, "moe_down", "forward", down_flops, h / 2 + y + size * down_weights},
        {"moe_down grad", shape, "moe_down", "backward", 2 * down_flops, 2 * h + y + (size + 4) * down_weights},
        {"moe_gate_up grad", shape, "moe_gate_up", "backward", 2 * up_flops, h + 2 * y + (size + 4) * up_weights}};
  }
  // A frozen base is read forward and backward; of the rest what the nodes above count, less gradients of weights.
  const bool int8 = training == Training::kLoraInt8;
  const double weight_bytes = (int8 ? 1 : size) * (up_weights + down_weights);
  const double bytes = full ? 0 : 2 * weight_bytes + 4.5 * h + 5 * y;
  result.parts.push_back({name, shape, "step", "", (full ? 3 : 2) * (up_flops + down_flops), bytes, int8});
  result.record = [=, &gate_up, &down](Tape& tape) {
    return moe_experts(tape, x(tape), {tape.input(ids), weights(tape)}, {&gate_up, &down}, adapters);
  };
  result.gradient = m.activations(data, hidden);
  return result;
}

std::vector<int32_t> random_ids(int64_t count, int64_t bound) {
  PhiloxSequence random(23);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(bound)));
  return ids;
}

OpCase head_case(const Maker& m, BenchData& data, const std::string& name, bool trained) {
  const int64_t vocab = m.config.vocab_size, tokens = m.tokens();
  const auto x = m.input(data, m.hidden());
  Weight& w = data.weight({vocab, m.hidden()}, m.sizes.dtype, trained);
  std::vector<int32_t> rows(static_cast<size_t>(tokens));
  std::iota(rows.begin(), rows.end(), 0);
  CrossEntropyLoss loss;
  loss.tokens = {.rows = data.upload({tokens}, std::move(rows)),
                 .targets = data.upload({tokens}, random_ids(tokens, vocab)),
                 .weights = data.upload({tokens}, std::vector<float>(static_cast<size_t>(tokens), 1.0f))};
  const Tensor memory = data.take({512}, DType::kU8);
  std::vector<uint8_t> bytes(512, 0);
  StepScalars scalars;
  scalars.inv_loss_weight = 1.0f / static_cast<float>(tokens);
  std::memcpy(bytes.data(), &scalars, sizeof(scalars));
  data.stream().upload(memory, std::move(bytes));
  loss.scalars = reinterpret_cast<StepScalars*>(memory.data);
  loss.totals = reinterpret_cast<LossTotals*>(memory.data + 256);
  const double weights = static_cast<double>(vocab * m.hidden()), flops = 2 * weights * static_cast<double>(tokens);
  OpCase result;
  result.parts = {{name, fmt::format("[{}, {}] → {}", tokens, m.hidden(), vocab), "linear_cross_entropy", "forward",
                   (trained ? 3 : 2) * flops, 2 * m.rows(m.hidden()) + (m.element() + (trained ? 4 : 0)) * weights}};
  result.record = [=, &w](Tape& tape) {
    linear_cross_entropy(tape, x(tape), w, nullptr, loss);
    return Var{};
  };
  return result;
}

OpCase embedding_case(const Maker& m, BenchData& data) {
  const Tensor ids = data.upload({m.tokens()}, random_ids(m.tokens(), m.config.vocab_size));
  Weight& w = data.weight({m.config.vocab_size, m.hidden()}, m.sizes.dtype, true);
  const std::string shape = fmt::format("{} of [{}, {}]", m.tokens(), m.config.vocab_size, m.hidden());
  const double table = 4 * static_cast<double>(m.config.vocab_size * m.hidden());
  OpCase result;
  result.parts = {{"embedding", shape, "embedding", "forward", 0, 2 * m.rows(m.hidden())},
                  {"embedding grad", shape, "embedding", "backward", 0, m.rows(m.hidden()) + table}};
  result.record = [=, &w, dtype = m.sizes.dtype](Tape& tape) { return embedding(tape, ids, w, dtype); };
  result.gradient = m.activations(data, m.hidden());
  return result;
}

/// The formats of an optimizer step, and the bytes of an element that it reads and writes.
struct AdamwFormats {
  const char* name;
  DType parameter, gradient, m, v;

  double bytes(bool copies) const {
    const auto size = [](DType dtype) {
      return static_cast<double>(size_of(dtype)) + (size_of(dtype) == 1 ? 4.0 / 256 : 0.0);
    };
    return 2 * (size(parameter) + size(m) + size(v)) + size(gradient) + (copies ? 2 : 0);
  }
};

constexpr AdamwFormats kAdamwFormats[] = {
    {"adamw", DType::kF32, DType::kF32, DType::kF32, DType::kF32},
    {"adamw all bf16", DType::kBF16, DType::kBF16, DType::kBF16, DType::kBF16},
    {"adamw 8-bit moments", DType::kF32, DType::kF32, DType::kI8, DType::kU8},
    {"adamw bf16, 8-bit moments", DType::kBF16, DType::kBF16, DType::kI8, DType::kU8},
};

OpCase adamw_case(const Maker& m, BenchData& data, const AdamwFormats& formats) {
  const int64_t count = int64_t{1} << (data.stream().device().kind == DeviceKind::kCuda ? 28 : 24);
  const bool copies = m.sizes.dtype != DType::kF32 && formats.parameter == DType::kF32;
  const auto moment = [&](DType dtype) {
    return Moment{data.take({count}, dtype), size_of(dtype) == 1 ? data.take({count / 256}, DType::kF32) : Tensor{}};
  };
  AdamwTensor tensor;
  tensor.parameter = data.random({count}, formats.parameter, 0.02f);
  if (copies) tensor.working_copy = data.take({count}, m.sizes.dtype);
  tensor.m = moment(formats.m);
  tensor.v = moment(formats.v);
  tensor.gradient = data.random({count}, formats.gradient, 1e-3f);
  const Tensor memory =
      data.upload({static_cast<int64_t>(sizeof(StepScalars))}, std::vector<uint8_t>(sizeof(StepScalars), 0));
  const AdamwArgs args{.tensors = {tensor}, .scalars = reinterpret_cast<StepScalars*>(memory.data)};
  OpCase result;
  result.parts = {
      {formats.name, fmt::format("[{}]", count), "adamw", "", 0, static_cast<double>(count) * formats.bytes(copies)}};
  result.backward = false;
  result.record = [args](Tape& tape) {
    const ProfileScope scope(tape.context(), ProfileKind::kOp, "adamw");
    adamw(tape.context(), args);
    return Var{};
  };
  return result;
}

/// Optimizers whose step reads zeros for scalars: rates of 0, so that weights stay what they are.
struct OptimizerStepCase {
  Tensor parameter, working_copy, gradient;
  const StepScalars* scalars;
  int64_t rows, columns;

  OptimizerStepCase(const Maker& m, BenchData& data) {
    rows = int64_t{1} << (data.stream().device().kind == DeviceKind::kCuda ? 16 : 12);
    columns = 4096;
    parameter = data.random({rows, columns}, DType::kF32, 0.02f);
    if (m.sizes.dtype != DType::kF32) working_copy = data.take({rows, columns}, m.sizes.dtype);
    gradient = data.random({rows, columns}, DType::kF32, 1e-3f);
    const Tensor memory =
        data.upload({static_cast<int64_t>(sizeof(StepScalars))}, std::vector<uint8_t>(sizeof(StepScalars), 0));
    scalars = reinterpret_cast<StepScalars*>(memory.data);
  }

  template <class Args>
  OpCase of(const char* name, const Args& args, void (*op)(const Context&, const Args&), double bytes) const {
    OpCase result;
    const double count = static_cast<double>(rows) * static_cast<double>(columns);
    result.parts = {{name, fmt::format("[{}, {}]", rows, columns), name, "", 0,
                     count * (bytes + (working_copy.defined() ? 2 : 0))}};
    result.backward = false;
    result.record = [=](Tape& tape) {
      const ProfileScope scope(tape.context(), ProfileKind::kOp, name);
      op(tape.context(), args);
      return Var{};
    };
    return result;
  }
};

OpCase adafactor_case(const Maker& m, BenchData& data) {
  const OptimizerStepCase step(m, data);
  AdafactorArgs args;
  args.tensors = {{.parameter = step.parameter,
                   .working_copy = step.working_copy,
                   .rows = data.take({step.rows}, DType::kF32),
                   .columns = data.take({step.columns}, DType::kF32),
                   .gradient = step.gradient}};
  args.scalars = step.scalars;
  return step.of("adafactor", args, &adafactor, 3 * 4 + 2 * 4);
}

OpCase lion_case(const Maker& m, BenchData& data) {
  const OptimizerStepCase step(m, data);
  MomentumArgs args;
  args.tensors = {{.parameter = step.parameter,
                   .working_copy = step.working_copy,
                   .m = data.take({step.rows, step.columns}, DType::kF32),
                   .gradient = step.gradient}};
  args.scalars = step.scalars;
  args.rule = MomentumRule::kLion;
  return step.of("lion", args, &momentum, 4 + 4 * 4);
}

}  // namespace

std::vector<OpCaseMaker> op_cases(const DecoderConfig& config, const OpSizes& sizes) {
  const Maker m{config, sizes};
  std::vector<OpCaseMaker> makers;
  const auto add = [&](std::vector<std::string> names, std::function<OpCase(BenchData&)> make) {
    makers.push_back({std::move(names), std::move(make)});
  };
  const auto add_plain = [&](std::vector<std::string> names, OpCase (*make)(const Maker&, BenchData&)) {
    add(std::move(names), [=](BenchData& data) { return make(m, data); });
  };
  const auto add_linear = [&](const std::string& projection, int64_t in, int64_t out) {
    const std::string name = "linear " + projection;
    add({name, name + " grad dx dW"}, [=](BenchData& data) { return linear_case(data, name, sizes, in, out, true); });
    add({name + " grad dx"}, [=](BenchData& data) { return linear_case(data, name, sizes, in, out, false); });
  };
  const int64_t hidden = config.hidden_size, q_size = config.num_attention_heads * config.head_dim;
  std::vector<std::string> attention_parts = {"attention", "attention grad"};
  if (m.latent()) {
    const LatentConfig& latent = config.latent;
    if (latent.q_lora_rank > 0) add_linear("q_a_proj", hidden, latent.q_lora_rank);
    add_linear(latent.q_lora_rank > 0 ? "q_b_proj" : "q_proj", latent.q_lora_rank > 0 ? latent.q_lora_rank : hidden,
               q_size);
    add_linear("kv_a_proj_with_mqa", hidden, latent.kv_lora_rank + latent.qk_rope_head_dim);
    add_linear("kv_b_proj", latent.kv_lora_rank, latent_sizes(config).kv_width());
    attention_parts.insert(attention_parts.end(), {"latent_heads", "latent_heads grad"});
  } else {
    add_linear("q_proj", hidden, q_size);
    add_linear("k_proj, v_proj", hidden, config.num_key_value_heads * config.head_dim);
  }
  add_linear("o_proj", config.num_attention_heads * config.v_head_dim, hidden);
  add_plain(std::move(attention_parts), attention_case);
  if (config.delta_net.heads.num_value_heads > 0) {
    add_plain({"causal_conv", "causal_conv grad"}, causal_conv_case);
    add_plain({"gated_delta_rule", "gated_delta_rule grad"}, gated_delta_rule_case);
    add_plain({"gated_rms_norm", "gated_rms_norm grad"}, gated_rms_norm_case);
  }
  add_plain({"rms_norm", "rms_norm grad"}, rms_norm_case);
  add_plain({"add_rms_norm with grad"}, add_rms_norm_case);
  add_plain({"add"}, add_case);
  add_plain({"qk_norm_rope", "qk_norm_rope grad"}, qk_norm_rope_case);
  if (const int64_t inner = config.layers.front().intermediate_size; inner > 0) {
    add_linear("gate_proj, up_proj", hidden, inner);
    add_linear("down_proj", inner, hidden);
    add_plain({"swiglu", "swiglu grad"}, swiglu_case);
  }
  if (config.num_moe_layers() > 0) {
    add_plain({"router", "router grad"}, router_case);
    add({"moe_permutation", "moe_gate_up", "moe_down", "moe_down grad", "moe_gate_up grad", "moe layer"},
        [=](BenchData& data) { return moe_case(m, data, "moe layer", 0, Training::kFull, true); });
    add({"moe layer, Zipf"},
        [=](BenchData& data) { return moe_case(m, data, "moe layer, Zipf", 1, Training::kFull, false); });
    add({"moe layer, LoRA"},
        [=](BenchData& data) { return moe_case(m, data, "moe layer, LoRA", 0, Training::kLora, false); });
    const Shape down{1, hidden, config.moe.moe_intermediate_size};  // where it fits, gate and up do, too
    if (sizes.device == DeviceKind::kCpu && fits_int8(down)) {
      add({"moe layer, LoRA, int8"},
          [=](BenchData& data) { return moe_case(m, data, "moe layer, LoRA, int8", 0, Training::kLoraInt8, false); });
    }
  }
  add({"linear_cross_entropy"}, [=](BenchData& data) { return head_case(m, data, "linear_cross_entropy", true); });
  add({"linear_cross_entropy frozen"},
      [=](BenchData& data) { return head_case(m, data, "linear_cross_entropy frozen", false); });
  add_plain({"embedding", "embedding grad"}, embedding_case);
  for (const AdamwFormats& formats : kAdamwFormats) {
    add({formats.name}, [=](BenchData& data) { return adamw_case(m, data, formats); });
  }
  add_plain({"adafactor"}, adafactor_case);
  add_plain({"lion"}, lion_case);
  return makers;
}

}  // namespace hone
