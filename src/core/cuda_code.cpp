#include "core/cuda_code.h"

#include <charconv>

namespace hone::cuda {

namespace {

bool runs_on(std::string_view architecture, int capability) {
  constexpr std::string_view kPtx = "compute_";
  const bool ptx = architecture.starts_with(kPtx);
  if (ptx) architecture.remove_prefix(kPtx.size());
  int compiled = 0;
  const auto [end, error] = std::from_chars(architecture.data(), architecture.data() + architecture.size(), compiled);
  if (error != std::errc()) return false;
  const std::string_view suffix(end, static_cast<size_t>(architecture.data() + architecture.size() - end));
  if (suffix == "a") return capability == compiled;
  if (!suffix.empty()) return false;
  return capability >= compiled && (ptx || capability / 10 == compiled / 10);
}

}  // namespace

bool has_code_for(std::string_view architectures, int major, int minor) {
  constexpr std::string_view kSeparators = " ,;";
  while (true) {
    const size_t begin = architectures.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) return false;
    architectures.remove_prefix(begin);
    const std::string_view one = architectures.substr(0, architectures.find_first_of(kSeparators));
    if (runs_on(one, 10 * major + minor)) return true;
    architectures.remove_prefix(one.size());
  }
}

}  // namespace hone::cuda
