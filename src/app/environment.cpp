#include "app/environment.h"

#include <fmt/format.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "app/output.h"
#include "core/cpu_features.h"
#include "core/json.h"
#include "report/humanise.h"
#include "train/host_memory.h"

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

std::string features(bool present) {
  std::string text;
  for (const CpuFeature& feature : cpu_features()) {
    if (feature.present == present) text += (text.empty() ? "" : " ") + std::string(feature.name);
  }
  return text.empty() ? "none" : text;
}

std::vector<std::pair<std::string, std::string>> facts() {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"version", HONE_VERSION},
      {"build", build_type()},
      {"compiler", compiler()},
      {"cpu", cpu_name()},
      {"cores", fmt::format("{}", std::thread::hardware_concurrency())},
      {"memory_free", human_bytes(static_cast<double>(available_host_memory()))},
      {"features", features(true)},
      {"features_missing", features(false)},
      {"instruction_set", std::string(name_of(active_isa()))},
  };
  for (const char* kernel : kKernels) rows.emplace_back(kernel, std::string(name_of(active_isa())));
  rows.emplace_back("gpu", "none in this build");
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
  print_text(fmt::format("hone {}\n", HONE_VERSION));
  return 0;
}

}  // namespace hone
