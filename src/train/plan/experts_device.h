// experts_device: auto. Where the routed experts of a run are, and what computes them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "core/base/dtype.h"
#include "core/cpu/thread_pool.h"
#include "session/loaded_model.h"

namespace hone {

/// Where the routed experts of the layers are, and what computes them: of `cpu` layers in host memory, computed by the
/// CPU (experts_device: cpu, cpu_expert_layers); of `streamed` layers in host memory until the device computes them
/// (cpu_offload: experts, offload_expert_layers); of the others on the device. kAllLayers: all, or all others.
struct ExpertsPlace {
  int64_t cpu = 0, streamed = 0;

  bool operator==(const ExpertsPlace&) const = default;
};

/// The run's configuration with its experts in a place.
RunConfig with_experts_in(RunConfig config, ExpertsPlace place);
/// The place of a configuration whose experts_device is gpu or cpu.
ExpertsPlace experts_place_of(const RunConfig& config);

/// What a micro-batch asks of the experts of all layers, each as much.
struct ExpertWork {
  int64_t layers = 1;   ///< that have experts
  double flops = 0;     ///< for forward and, in training, backward
  double streamed = 0;  ///< bytes of their weights, as they are stored, that a rank copies to its device if they are
                        ///< streamed, once for each of these: its part
  double read = 0;  ///< bytes that the CPU reads if it computes them: of experts that a token chooses, if all are as
                    ///< likely
};
ExpertWork expert_work(const ParameterStore& store, int64_t tokens, int64_t experts_per_token, bool training);

/// Rates of experts' products, FLOP/s; of copies from host memory to the device, and of reading host memory, bytes/s.
struct ExpertRates {
  double device = 0, host = 0, link = 0, memory = 0;
};
/// The CPU's products of `rows` rows an expert, its memory and the link are measured; of the GPU, a share of the peak
/// of its data sheet. `pool`: of the CPU that would compute them; `store` has experts. Takes some 0.5 s; not during a
/// step.
ExpertRates expert_rates(Device device, ThreadPool& pool, const ParameterStore& store, int64_t rows, DType dtype);

/// Seconds of a micro-batch's experts in a place. Layers come one after another, on the CPU or on the device; weights
/// are streamed beside the products of both.
double seconds_of(ExpertsPlace place, const ExpertWork& work, const ExpertRates& rates);

/// The place for a run: on the device if they fit there; else the fastest of those that fit, among all layers on the
/// CPU, the fewest on the CPU or streamed that leave room for the others on the device, and of so many the share on the
/// CPU with which streaming the rest takes least; and why. `measured` gives the rates, if they matter. `fits`: whether
/// a run of this configuration fits. If none does, all on the CPU, which needs least of the device.
struct ExpertsChoice {
  ExpertsPlace place;
  std::string reason;
};
ExpertsChoice choose_experts_place(const RunConfig& config, const ExpertWork& work,
                                   const std::function<ExpertRates()>& measured,
                                   const std::function<bool(const RunConfig&)>& fits);

/// What a choice depends on.
struct ExpertsQuestion {
  LoadedModel& model;  ///< with its trainable parameters, as auto has them on the device
  Device device;
  ThreadPool& pool;    ///< the threads of the CPU that would compute them
  int64_t tokens = 0;  ///< in the largest micro-batch
  bool training = true;
  /// Whether a run of this configuration fits: at the level of recomputation that needs least, and with experts on the
  /// host recomputed there if that makes it fit (fits_at).
  std::function<bool(const RunConfig&)> fits;
};
/// Chooses for a configuration whose experts_device is auto, by measured rates.
ExpertsChoice choose_experts_place(const RunConfig& config, const ExpertsQuestion& question);

/// What experts_device: auto is for a run.
struct ExpertsDevice {
  RunConfig config;  ///< with the place
  std::string line;  ///< for the user: "experts_device auto: gpu; they fit on the GPU"
};
ExpertsDevice experts_device_in(const RunConfig& config, const ExpertsChoice& choice);

}  // namespace hone
