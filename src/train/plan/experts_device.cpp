#include "train/plan/experts_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "config/run_options.h"
#include "core/base/printable.h"
#include "core/cpu/cpu_peaks.h"
#include "core/cuda/planned_device.h"
#include "core/memory/buffer.h"
#include "core/memory/pinned_chunk.h"
#include "params/expert_parts.h"
#include "params/frozen_weights.h"
#include "params/payload.h"
#include "train/plan/expert_rate.h"
#include "train/plan/model_flops.h"

namespace hone {

namespace {

/// The share of its peak that a GPU reaches. Measured with LoRA on a layer's experts of Qwen3-30B-A3B, forward and
/// backward: 449 of the 990 TFLOP/s of an H200.
constexpr double kDeviceShare = 0.45;

/// Rates for a GPU that is not known or not there: PCIe 5 x16, and an H100.
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
  RunConfig::Machine& machine = config.machine;
  const auto stated = [](int64_t layers) {
    return layers > 0 && layers != kAllLayers ? std::optional(layers) : std::nullopt;
  };
  machine.experts_device = place.cpu > 0 ? ExpertsOn::kCpu : ExpertsOn::kDevice;
  machine.cpu_expert_layers = stated(place.cpu);
  machine.offload_expert_layers = stated(place.streamed);
  if (place.streamed > 0) machine.cpu_offload.push_back(OffloadPart::kExperts);
  return config;
}

ExpertsPlace experts_place_of(const RunConfig& config) {
  const RunConfig::Machine& machine = config.machine;
  const bool streams = offload_of(machine.cpu_offload).experts;
  return {.cpu = machine.experts_device == ExpertsOn::kCpu ? machine.cpu_expert_layers.value_or(kAllLayers) : 0,
          .streamed = streams ? machine.offload_expert_layers.value_or(kAllLayers) : 0};
}

ExpertWork expert_work(const ParameterStore& store, int64_t tokens, int64_t experts_per_token, bool training) {
  ExpertWork work;
  work.layers = std::max<int64_t>(1, static_cast<int64_t>(layers_with_experts(store).size()));
  for (const Parameter& p : store.all()) {
    if (!is_experts(p)) continue;
    const int64_t of_an_expert = p.shape().numel() / p.shape()[0];
    const double of_a_token = 2.0 * static_cast<double>(of_an_expert) * static_cast<double>(experts_per_token);
    // Backward has the products of forward once for its input, and once for trained weights.
    const int products = !training ? 1 : p.trainable() ? 3 : 2;
    work.flops += of_a_token * static_cast<double>(tokens) * products;
    const double stored =
        static_cast<double>(p.value().packed() ? p.shape().numel() / p.spec().matrix().numel() * packed_layout(p).bytes
                                               : p.shape().numel() * static_cast<int64_t>(size_of(p.value().dtype())));
    const double part = p.value().home().sharded
                            ? static_cast<double>(p.share().own().count) / static_cast<double>(p.shape().numel())
                            : 1;
    const int uses = training ? 2 : 1;
    const double chosen_by_a_token = static_cast<double>(experts_per_token) / static_cast<double>(p.shape()[0]);
    work.streamed += stored * part * uses;
    work.read += stored * uses * (1 - std::pow(1 - chosen_by_a_token, static_cast<double>(tokens)));
  }
  return work;
}

ExpertRates expert_rates(Device device, ThreadPool& pool, const ParameterStore& store, int64_t rows, DType dtype) {
  const auto gate_up = std::find_if(store.all().begin(), store.all().end(),
                                    [](const Parameter& p) { return begins_experts(p.spec().kind); });
  HONE_ASSERT(gate_up != store.all().end());
  const bool real_gpu = device.kind == DeviceKind::kCuda && !is_planned(device);
  const std::optional<double> peak = real_gpu ? peak_flops(device, dtype, pool) : std::nullopt;
  return {.device = kDeviceShare * peak.value_or(kUsualFlops),
          .host = measured_expert_rate(*gate_up, rows, dtype, pool),
          .link = real_gpu ? measured_link(device) : kUsualLink,
          .memory = measured_read_rate(pool)};
}

double seconds_of(ExpertsPlace place, const ExpertWork& work, const ExpertRates& rates) {
  const int64_t on_cpu = std::min(place.cpu, work.layers), streamed = std::min(place.streamed, work.layers - on_cpu);
  const auto share = [&](int64_t layers) { return static_cast<double>(layers) / static_cast<double>(work.layers); };
  const double of_cpu = std::max(work.flops / rates.host, work.read / rates.memory);  // few rows an expert: the latter
  const double products = share(on_cpu) * of_cpu + share(work.layers - on_cpu) * work.flops / rates.device;
  return std::max(products, share(streamed) * work.streamed / rates.link);
}

namespace {

/// The least number of layers for which `fits` holds, from 1 to `layers`, for which it is not asked.
int64_t fewest_that_fit(int64_t layers, const std::function<bool(int64_t)>& fits) {
  int64_t too_few = 0, enough = layers;
  while (enough - too_few > 1) {
    const int64_t middle = too_few + (enough - too_few) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  return enough;
}

/// How many of `layers`, which are not on the device, take least time on the CPU with the rest streamed.
ExpertsPlace fastest_of(int64_t layers, const ExpertWork& work, const ExpertRates& rates) {
  ExpertsPlace fastest{.streamed = layers};
  for (int64_t n = 1; n < layers; ++n) {
    const ExpertsPlace other{.cpu = n, .streamed = layers - n};
    if (seconds_of(other, work, rates) < seconds_of(fastest, work, rates)) fastest = other;
  }
  return fastest;
}

/// "12 layers on the CPU, 30 streamed to the GPU, 6 on the GPU"
std::string text_of(ExpertsPlace place, int64_t layers) {
  const int64_t on_cpu = std::min(place.cpu, layers), streamed = std::min(place.streamed, layers - on_cpu);
  std::vector<std::string> parts;
  const auto add = [&](int64_t count, const char* where) {
    if (count == 0) return;
    const std::string unit = parts.empty() ? fmt::format(" layer{}", plural(count)) : "";
    parts.push_back(fmt::format("{}{} {}", count, unit, where));
  };
  add(on_cpu, "on the CPU");
  add(streamed, "streamed to the GPU");
  add(layers - on_cpu - streamed, "on the GPU");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

ExpertsChoice choose_experts_place(const RunConfig& config, const ExpertWork& work,
                                   const std::function<ExpertRates()>& measured,
                                   const std::function<bool(const RunConfig&)>& fits) {
  constexpr ExpertsPlace kDevice{}, kHost{.cpu = kAllLayers};
  const auto fits_in = [&](ExpertsPlace place) { return fits(with_experts_in(config, place)); };
  if (!expert_format_of(config).movable()) return {kHost, "experts of 8 bits are computed on the CPU"};
  if (fits_in(kDevice)) return {kDevice, "they fit on the GPU"};
  const ExpertRates rates = measured();
  const auto whole = [&](ExpertsPlace place) {
    for (int64_t* const layers : {&place.cpu, &place.streamed}) *layers = *layers == work.layers ? kAllLayers : *layers;
    return place;
  };
  const int64_t computed = fewest_that_fit(work.layers, [&](int64_t n) { return fits_in({.cpu = n}); });
  std::vector<ExpertsPlace> possible = {{.cpu = computed}};
  if (!gathers_stepped_values(config)) {
    const int64_t streamed = fewest_that_fit(work.layers, [&](int64_t n) { return fits_in({.streamed = n}); });
    possible.insert(possible.end(), {{.streamed = streamed}, fastest_of(streamed, work, rates)});
  }
  std::vector<ExpertsPlace> places = {kHost};
  for (const ExpertsPlace place : possible) {
    if (std::find(places.begin(), places.end(), whole(place)) == places.end()) places.push_back(whole(place));
  }
  std::stable_sort(places.begin(), places.end(), [&](ExpertsPlace a, ExpertsPlace b) {
    return seconds_of(a, work, rates) < seconds_of(b, work, rates);
  });
  std::vector<std::string> times;
  for (const ExpertsPlace place : places) {
    const double seconds = seconds_of(place, work, rates);
    times.push_back(fmt::format("{:.{}f} s with {}", seconds, seconds < 10 ? 2 : 0, text_of(place, work.layers)));
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (fits_in(places[i])) {
      return {places[i], fmt::format("they do not fit on the GPU; a pass of them takes {}", fmt::join(times, "; "))};
    }
    times[i] += ", where the run does not fit";
  }
  return {kHost, "nothing fits"};
}

ExpertsChoice choose_experts_place(const RunConfig& config, const ExpertsQuestion& question) {
  const auto& [model, device, pool, tokens, training, fits] = question;
  const DecoderConfig& decoder = model.decoder().config();
  if (decoder.num_moe_layers() == 0) return {{}, "the model has no routed experts"};
  if (device.kind == DeviceKind::kCpu) return {{}, "the device is the CPU"};
  const ParameterStore& store = model.store();
  const int64_t chosen = decoder.moe.num_experts_per_tok;
  const int64_t rows = tokens * chosen / decoder.moe.num_experts;
  const auto measured = [&, on = device, &threads = pool] {
    return expert_rates(on, threads, store, rows, config.model.dtype);
  };
  return choose_experts_place(config, expert_work(store, tokens, chosen, training), measured, fits);
}

ExpertsDevice experts_device_in(const RunConfig& config, const ExpertsChoice& choice) {
  const auto& [place, reason] = choice;
  RunConfig chosen = with_experts_in(config, place);
  std::vector<std::string> keys;
  if (const auto layers = chosen.machine.cpu_expert_layers)
    keys.push_back(fmt::format("cpu_expert_layers: {}", *layers));
  if (place.streamed > 0) keys.emplace_back("cpu_offload: experts");
  if (const auto layers = chosen.machine.offload_expert_layers) {
    keys.push_back(fmt::format("offload_expert_layers: {}", *layers));
  }
  const std::string line = fmt::format("experts_device auto: {}{}{}; {}", chosen.machine.experts_device,
                                       keys.empty() ? "" : ", ", fmt::join(keys, ", "), reason);
  return {std::move(chosen), line};
}

}  // namespace hone
