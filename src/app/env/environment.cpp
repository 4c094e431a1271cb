#include "app/env/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/output.h"
#include "core/base/error.h"
#include "core/base/program.h"
#include "core/cpu/cpu_features.h"
#include "core/cpu/numa.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/nvml.h"
#include "core/cuda/vendor_library.h"
#include "core/stream/process_kernels.h"
#include "core/text/json.h"
#include "dist/transport/nccl_communicator.h"
#include "kernels/cuda/tiers.h"
#include "models/registry.h"
#include "report/humanise.h"
#include "report/table.h"
#include "report/terminal.h"
#include "session/device_facts.h"

namespace hone {
namespace {

std::string build_type() {
  std::string text =
#ifdef __OPTIMIZE__
      "optimised";
#else
      "not optimised: slow";
#endif
#ifdef __SANITIZE_ADDRESS__
  text += ", with AddressSanitizer";
#endif
  return text;
}

std::string compiler() {
#ifdef __clang__
  return "Clang " __clang_version__;
#else
  return "GCC " __VERSION__;
#endif
}

/// Kernels that have a version for each instruction set; the active one runs.
const char* const kKernels[] = {"matrix products", "attention scores", "head norms and rotation", "row arithmetic"};

/// "avx512", or with HONE_INSTRUCTION_SET "avx2 (HONE_INSTRUCTION_SET; the best here is avx512)".
std::string instruction_set() {
  const std::string active(name_of(active_isa()));
  return stated_isa() ? fmt::format("{} (HONE_INSTRUCTION_SET; the best here is {})", active, name_of(best_isa()))
                      : active;
}

std::string features(bool present) {
  std::string text;
  for (const CpuFeature& feature : cpu_features()) {
    if (feature.present == present) text += (text.empty() ? "" : " ") + std::string(feature.name);
  }
  return text.empty() ? "none" : text;
}

/// "23 % busy, 115 W, 41 °C", as far as it is known.
std::string sensors(const GpuReading& reading) {
  std::string text;
  const auto add = [&](const std::optional<double>& value, const char* unit) {
    if (value) text += fmt::format("{}{:.0f} {}", text.empty() ? "" : ", ", *value, unit);
  };
  add(reading.utilization, "% busy");
  add(reading.power, "W");
  add(reading.temperature, "°C");
  return text;
}

/// "attention sm90, grouped products sm90, …; 227 KB of shared memory"
std::string kernels_of(const cuda::DeviceInfo& info) {
  const cuda::KernelTiers tiers =
      cuda::kernel_tiers_of({10 * info.major + info.minor, info.shared_memory}, kernel_limit_of_process());
  return fmt::format(
      "attention {}, grouped products {}, low-rank products {}, gated delta rule {}, state-space scan {}, "
      "rows of logits {}; {} KB of shared memory",
      name_of(tiers.attention), name_of(tiers.grouped_gemm), name_of(tiers.low_rank), name_of(tiers.delta_rule),
      name_of(tiers.ssd_scan), name_of(tiers.loss_rows), tiers.shared_memory >> 10);
}

/// "80.1 GB of 85.0 GB free", or why a GPU that is full does not say.
std::string memory_of(int index) {
  try {
    const cuda::MemoryCount memory = cuda::memory_count(index);
    return fmt::format("{} of {} free", human_bytes(memory.free), human_bytes(memory.total));
  } catch (const Error& error) {
    return error.message();
  }
}

using Facts = std::vector<std::pair<std::string, std::string>>;

/// The GPUs and their software, or one line with the reason why there is no GPU.
Facts gpu_facts() {
  const int count = cuda::device_count();
  if (count == 0) return {{"gpu", "none: " + cuda::why_no_device()}};
  const std::unique_ptr<Nvml> nvml = Nvml::open();
  Facts rows;
  for (int i = 0; i < count; ++i) {
    const cuda::DeviceInfo info = cuda::device_info(i);
    const std::string text = fmt::format("{}, {}, compute capability {}.{}, {} multiprocessors", info.name,
                                         memory_of(i), info.major, info.minor, info.multiprocessors);
    const std::string now = nvml ? sensors(nvml->read(info.pci_bus_id)) : "";
    rows.emplace_back(fmt::format("cuda:{}", i), now.empty() ? text : text + ", " + now);
    const auto refusal = cuda::refusal_by_code(i, info, cuda::built_architectures());
    rows.emplace_back(fmt::format("cuda:{}_kernels", i),
                      refusal ? fmt::format("none: {}; {}", refusal->reason, refusal->remedy) : kernels_of(info));
  }
  const cuda::Versions versions = cuda::versions();
  rows.emplace_back("nvidia_driver", fmt::format("{} (CUDA {})", nvml ? nvml->driver_version() : "version unknown",
                                                 versions.driver_cuda));
  rows.emplace_back("cuda", fmt::format("{}, code for {}", versions.runtime, cuda::built_architectures()));
  const cuda::ProductsLibrary products = cuda::products_library();
  rows.emplace_back("cublaslt",
                    products.problem.empty() ? products.found : missing_text(products.problem, products.fix));
  rows.emplace_back("nccl", nccl_version());
  return rows;
}

/// The NUMA nodes that threads and memory are spread over: their number, and what each has.
Facts memory_nodes() {
  const std::vector<NumaNode> nodes = nodes_in_use();
  std::string number = fmt::format("{}", nodes.size());
  if (nodes.size() > 1) number += ", threads and memory are spread over them";
  if (nodes.size() > 1 && !may_place_pages()) number += " (by first touch: mbind is not permitted)";
  Facts rows = {{"memory_nodes", number}};
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeMemory memory = memory_of_node(nodes[i].number);
    rows.emplace_back(fmt::format("memory_node_{}", i),
                      fmt::format("cores {}; {} of {} free", core_list(nodes[i].cores), human_bytes(memory.free),
                                  human_bytes(memory.total)));
  }
  return rows;
}

Facts facts() {
  Facts rows = {
      {"version", version()},
      {"build", build_type()},
      {"compiler", compiler()},
      {"cpu", cpu_name()},
      {"cores", fmt::format("{}", std::thread::hardware_concurrency())},
  };
  for (auto& row : memory_nodes()) rows.push_back(std::move(row));
  const Facts of_cpu = {
      {"memory_free", human_bytes(available_host_memory())},
      {"features", features(true)},
      {"features_missing", features(false)},
      {"instruction_set", instruction_set()},
  };
  rows.insert(rows.end(), of_cpu.begin(), of_cpu.end());
  for (const char* kernel : kKernels) rows.emplace_back(kernel, std::string(name_of(active_isa())));
  for (auto& row : gpu_facts()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace

int run_env(bool json) {
  Json object = Json::object();
  std::string text;
  for (const auto& [name, value] : facts()) {
    object[name] = value;
    text += fmt::format("{:<26}{}\n", name, value);
  }
  print_text(json ? object.dump(2) + "\n" : text);
  return 0;
}

int run_version() {
  print_text(fmt::format("hone {}\n", version()));
  return 0;
}

namespace {

/// The cells of an architecture: what its reference cases verify on a CPU and on a GPU. docs/fits.md is about memory.
std::vector<std::string> cells_of(const Architecture& architecture) {
  return {architecture.released, architecture.name, architecture.experts ? "full, LoRA, expert LoRA" : "full, LoRA",
          architecture.cases.empty() ? "none" : fmt::format("{}", fmt::join(architecture.cases, ", "))};
}

const std::vector<std::string>& header() {
  static const std::vector<std::string> names = {"models", "architecture", "methods", "reference cases"};
  return names;
}

}  // namespace

std::string models_markdown() {
  std::string text = fmt::format("| {} |\n|", fmt::join(header(), " | "));
  for (size_t i = 0; i < header().size(); ++i) text += "---|";
  for (const Architecture& architecture : architectures()) {
    text += fmt::format("\n| {} |", fmt::join(cells_of(architecture), " | "));
  }
  return text + "\n";
}

Json models_json() {
  Json list = Json::array();
  for (const Architecture& architecture : architectures()) {
    list.push_back({{"architecture", architecture.name},
                    {"model_type", architecture.model_type},
                    {"released", architecture.released},
                    {"experts", architecture.experts},
                    {"cases", architecture.cases}});
  }
  return list;
}

int run_models(bool markdown, bool json) {
  if (json || markdown) {
    print_text(json ? models_json().dump(2) + "\n" : models_markdown());
    return 0;
  }
  std::vector<Table::Column> columns;
  for (const std::string& name : header()) {  // in narrow terminals the models and what is trained of them stay
    const bool stays = name == "models" || name == "methods";
    columns.push_back({.name = name, .drop = stays ? 0 : static_cast<int>(columns.size())});
  }
  Table table(columns);
  for (const Architecture& architecture : architectures()) table.add_row(cells_of(architecture));
  print_text(table.to_string(false, 2, Terminal::of(1).table_width()));
  return 0;
}

}  // namespace hone
