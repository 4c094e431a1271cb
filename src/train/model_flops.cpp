#include "train/model_flops.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "core/cpu_peaks.h"
#include "session/device_facts.h"

namespace hone {

namespace {

/// Multiply-adds of a token in a layer of linear attention: projections, convolution, and the state of each head, which
/// is read by the key, updated, and read by the query.
double delta_net_products(const DecoderConfig& config) {
  const DeltaHeads& heads = config.delta_net.heads;
  const int64_t values = heads.num_value_heads * heads.value_dim;
  const int64_t in = config.hidden_size * (heads.width() + values + 2 * heads.num_value_heads);
  return static_cast<double>(in + values * config.hidden_size + config.delta_net.conv_taps * heads.width() +
                             3 * values * heads.key_dim);
}

/// Elements of a layer's projections of attention: the products of a token.
double attention_weights(const DecoderConfig& config, const LayerConfig& layer) {
  const int64_t hidden = config.hidden_size, heads = config.num_attention_heads;
  int64_t count = heads * config.v_head_dim * hidden;  // o_proj
  if (layer.mixer == MixerKind::kLatentAttention) {
    const LatentConfig& latent = config.latent;
    const int64_t q_width = heads * config.head_dim, q_rank = latent.q_lora_rank;
    count += q_rank == 0 ? hidden * q_width : q_rank * (hidden + q_width);
    count += hidden * (latent.kv_lora_rank + latent.qk_rope_head_dim);
    count += latent.kv_lora_rank * heads * (latent.qk_nope_head_dim + latent.v_head_dim);
  } else {
    const int64_t queries = config.attention_output_gate ? 2 : 1;
    count += hidden *
             (queries * heads * config.head_dim + config.num_key_value_heads * (config.head_dim + config.v_head_dim));
  }
  return static_cast<double>(count);
}

/// Multiply-adds of a token in a layer's MLP or experts.
double feed_forward_products(const DecoderConfig& config, const LayerConfig& layer) {
  const MoeConfig& moe = config.moe;
  const int64_t inner = layer.moe
                            ? moe.moe_intermediate_size * moe.num_experts_per_tok + moe.shared_expert_intermediate_size
                            : layer.intermediate_size;
  return static_cast<double>(config.hidden_size * (3 * inner + (layer.moe ? moe.num_experts : 0)));
}

struct NamedRate {
  std::string_view name;
  GpuRate rate;
};

/// NVIDIA's data sheets; of names that begin alike the longer one comes first.
constexpr std::array<NamedRate, 22> kGpuRates = {
    {{"H100 PCIe", {756, 51}},  {"H100 NVL", {835, 60}},      {"H100", {989.4, 66.9}},     {"H200", {989.4, 66.9}},
     {"GH200", {989.4, 66.9}},  {"H20", {148, 44}},           {"H800", {989.4, 66.9}},     {"B200", {2250, 75}},
     {"A100", {312, 19.5}},     {"A800", {312, 19.5}},        {"A30", {165, 10.3}},        {"A40", {149.7, 37.4}},
     {"A10", {125, 31.2}},      {"RTX A6000", {154.8, 38.7}}, {"L4", {121, 30.3}},         {"L40", {181, 90.5}},
     {"L40S", {362, 91.6}},     {"RTX 5090", {209.5, 104.8}}, {"RTX 4090", {165.2, 82.6}}, {"RTX 4080", {97.5, 48.7}},
     {"RTX 3090 Ti", {80, 40}}, {"RTX 3090", {71, 35.6}}}};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

}  // namespace

ForwardWork work_of(const StepData& data) {
  ForwardWork work;
  work.tokens = static_cast<double>(data.tokens());
  work.supervised = static_cast<double>(data.supervised());
  for (const MicroBatch& batch : data.micro_batches) {
    for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
      work.documents.push_back(batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
    }
  }
  return work;
}

double ForwardWork::pairs(int64_t window) const {
  double pairs = 0;
  for (const double length : documents) {
    const double beyond = window == 0 ? 0 : std::max(length - static_cast<double>(window), 0.0);
    pairs += (length * length - beyond * beyond) / 2;
  }
  return pairs;
}

double forward_flops(const DecoderConfig& config, const ForwardWork& work) {
  // q·k and p·v of a pair
  const auto pair = static_cast<double>(config.num_attention_heads * (config.head_dim + config.v_head_dim));
  double products = work.supervised * static_cast<double>(config.hidden_size) * static_cast<double>(config.vocab_size);
  for (const LayerConfig& layer : config.layers) {
    products += work.tokens * feed_forward_products(config, layer);
    products += layer.mixer == MixerKind::kGatedDeltaNet
                    ? work.tokens * delta_net_products(config)
                    : work.tokens * attention_weights(config, layer) + work.pairs(layer.sliding_window) * pair;
  }
  return 2 * products;
}

std::optional<double> peak_flops(Device device, DType dtype, ThreadPool& pool) {
  if (device.kind == DeviceKind::kCpu) return measured_peak_flops(dtype, pool);
  const std::optional<GpuRate> rate = rate_of_gpu(device_name(device));
  if (!rate) return std::nullopt;
  return 1e12 * (dtype == DType::kF32 ? rate->float32 : rate->bf16);
}

std::optional<GpuRate> rate_of_gpu(const std::string& name) {
  for (const NamedRate& gpu : kGpuRates) {
    const size_t begin = name.find(gpu.name), end = begin + gpu.name.size();
    if (begin == std::string::npos || (begin > 0 && is_word(name[begin - 1]))) continue;
    if (end == name.size() || !is_word(name[end])) return gpu.rate;
  }
  return std::nullopt;
}

}  // namespace hone
