#include "train/experts_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/buffer.h"
#include "core/cpu_peaks.h"
#include "core/pinned_chunk.h"
#include "core/planned_device.h"
#include "params/frozen_weights.h"
#include "train/model_flops.h"
#include "train/run_options.h"

namespace hone {

namespace {

// Measured with LoRA on a layer's experts, forward and backward: DeepSeek-V3 on 16 vCPUs with AMX 6.0 of 14.4 TFLOP/s
// in int8; Qwen3-30B-A3B on an H200 449 of 990 TFLOP/s.
constexpr double kHostShare = 0.42, kDeviceShare = 0.45;

/// Of a GPU that is not known or not there: PCIe 5 x16, and an H100.
constexpr double kUsualLink = 50e9, kUsualFlops = 990e12;

double measured_link(Device device) {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr int kCopies = 4;
  const Buffer there(device, kBytes);
  PinnedChunk here(device.index, kBytes);
  const auto copy = [&](int times) {
    for (int i = 0; i < times; ++i) here.start_upload(there.data(), kBytes);
    here.wait();
  };
  copy(1);
  const auto begin = std::chrono::steady_clock::now();
  copy(kCopies);
  return kCopies * static_cast<double>(kBytes) /
         std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

RunConfig with_experts_in(RunConfig config, ExpertsPlace place) {
  config.machine.experts_device = place == ExpertsPlace::kHost ? "cpu" : "gpu";
  if (place == ExpertsPlace::kStreamed) config.machine.cpu_offload.emplace_back("experts");
  return config;
}

ExpertsPlace experts_place_of(const RunConfig& config) {
  if (config.machine.experts_device == "cpu") return ExpertsPlace::kHost;
  const auto& offloaded = config.machine.cpu_offload;
  const bool streams = std::find(offloaded.begin(), offloaded.end(), "experts") != offloaded.end();
  return streams ? ExpertsPlace::kStreamed : ExpertsPlace::kDevice;
}

ExpertWork expert_work(const ParameterStore& store, int64_t tokens, int64_t experts_per_token, bool training) {
  ExpertWork work;
  for (const Parameter& p : store.all()) {
    if (!is_routed_expert(p)) continue;
    const int64_t of_an_expert = p.shape().numel() / p.shape()[0];
    const double of_a_token = 2.0 * static_cast<double>(of_an_expert) * static_cast<double>(experts_per_token);
    // Backward has the products of forward once for its input, and once for trained weights.
    const int products = !training ? 1 : p.trainable() ? 3 : 2;
    work.flops += of_a_token * static_cast<double>(tokens) * products;
    work.bytes += static_cast<double>(ParameterStore::bytes_of(p).weights) * (training ? 2 : 1);
  }
  return work;
}

ExpertRates expert_rates(Device device, ThreadPool& pool, bool int8, DType dtype) {
  const bool real_gpu = device.kind == DeviceKind::kCuda && !is_planned(device);
  const std::optional<double> peak = real_gpu ? peak_flops(device, dtype, pool) : std::nullopt;
  return {.device = kDeviceShare * peak.value_or(kUsualFlops),
          .host = kHostShare * measured_peak_flops(int8 ? DType::kI8 : dtype, pool),
          .link = real_gpu ? measured_link(device) : kUsualLink};
}

double seconds_of(ExpertsPlace place, const ExpertWork& work, const ExpertRates& rates) {
  switch (place) {
    case ExpertsPlace::kDevice:
      return work.flops / rates.device;
    case ExpertsPlace::kStreamed:
      return std::max(work.flops / rates.device, work.bytes / rates.link);
    case ExpertsPlace::kHost:
      return work.flops / rates.host;
  }
  return std::numeric_limits<double>::infinity();
}

ExpertsChoice choose_experts_place(const RunConfig& config, const ExpertWork& work, const ExpertRates& rates,
                                   const std::function<bool(const RunConfig&)>& fits) {
  const bool int8 = config.model.expert_weight_dtype == "int8";
  const double streamed = seconds_of(ExpertsPlace::kStreamed, work, rates),
               host = seconds_of(ExpertsPlace::kHost, work, rates);
  const std::string times =
      fmt::format("{:.2g} s a micro-batch on the CPU, {:.2g} s streamed to the GPU", host, streamed);
  if (int8) return {ExpertsPlace::kHost, "experts of 8 bits are computed on the CPU"};
  if (fits(with_experts_in(config, ExpertsPlace::kDevice))) return {ExpertsPlace::kDevice, "they fit on the GPU"};
  const ExpertsPlace faster = streamed <= host ? ExpertsPlace::kStreamed : ExpertsPlace::kHost;
  const ExpertsPlace slower = streamed <= host ? ExpertsPlace::kHost : ExpertsPlace::kStreamed;
  const char* const not_there = "they do not fit on the GPU; ";
  if (fits(with_experts_in(config, faster))) return {faster, not_there + times};
  if (fits(with_experts_in(config, slower))) return {slower, not_there + times + ", where the run does not fit"};
  return {ExpertsPlace::kHost, "nothing fits"};
}

ExpertsDevice choose_experts_device(const RunConfig& config, const ExpertsQuestion& question) {
  const auto& [model, device, pool, tokens, training, fits] = question;
  const DecoderConfig& decoder = model.decoder().config();
  if (decoder.num_moe_layers() == 0) {
    return experts_device_in(config, ExpertsPlace::kDevice, "the model has no routed experts");
  }
  if (device.kind == DeviceKind::kCpu) {
    return experts_device_in(config, ExpertsPlace::kDevice, "the device is the CPU");
  }
  const ExpertsChoice choice = choose_experts_place(
      config, expert_work(model.store(), tokens, decoder.moe.num_experts_per_tok, training),
      expert_rates(device, pool, config.model.expert_weight_dtype == "int8", dtype_of(config)), fits);
  return experts_device_in(config, choice.place, choice.reason);
}

ExpertsDevice experts_device_in(const RunConfig& config, ExpertsPlace place, const std::string& reason) {
  RunConfig chosen = with_experts_in(config, place);
  const std::string line = fmt::format("experts_device auto: {}{}; {}", chosen.machine.experts_device,
                                       place == ExpertsPlace::kStreamed ? " with cpu_offload: experts" : "", reason);
  return {std::move(chosen), place, line};
}

}  // namespace hone
