#include "app/env/wanted_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "app/output.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "models/registry.h"
#include "nn/decoder.h"
#include "params/parameter_store.h"
#include "params/placement.h"

namespace hone {

namespace {

using Fields = std::vector<std::string>;

/// A config.json as an architecture reads it.
struct Reading {
  const Architecture* architecture;
  std::optional<DecoderConfig> decoder;  ///< none: refused
  std::string refusal;
  Fields unread;  ///< more than it would leave, if it is refused
};

Reading read_as(const Architecture& architecture, const HfConfig& config) {
  const HfConfig fresh(config.json(), config.file());  // counts its own reads
  Reading reading{&architecture, {}, {}, {}};
  try {
    reading.decoder = architecture.read(fresh);
  } catch (const UserError& error) {
    reading.refusal = error.message();
  }
  reading.unread = fresh.unread();
  return reading;
}

/// What architectures make of the file, the nearest first: those that read it, and of them those that leave least.
std::vector<Reading> readings(const HfConfig& config) {
  std::vector<Reading> list;
  for (const Architecture& architecture : architectures()) list.push_back(read_as(architecture, config));
  std::ranges::stable_sort(list, [](const Reading& a, const Reading& b) {
    return std::pair(!a.decoder, a.unread.size()) < std::pair(!b.decoder, b.unread.size());
  });
  return list;
}

Fields without(const Fields& fields, const std::set<std::string>& excluded) {
  Fields rest;
  std::ranges::copy_if(fields, std::back_inserter(rest), [&](const std::string& f) { return !excluded.contains(f); });
  return rest;
}

/// "mixer, attention: 32 heads…" of what an architecture would build, without memory.
std::string parts_text(const DecoderConfig& config) {
  ParameterStore store;
  Placement placement;
  const Decoder decoder(config, store, placement, DType::kBF16);
  std::string text =
      fmt::format("  {:<20} {}, {} of them with experts\n", "layers", config.layers.size(), config.num_moe_layers());
  for (const ModuleSummary& module : decoder.summary()) text += fmt::format("  {:<20} {}\n", module.name, module.text);
  return text;
}

std::string joined(const Fields& fields) {
  return fields.empty() ? "none" : fmt::format("{}", fmt::join(fields, ", "));
}

}  // namespace

std::string wanted_text(const HfConfig& config) {
  const std::string name = config.architecture();
  if (const Architecture* const known = find_architecture(name)) {
    return fmt::format("{} is known: {}. `hone inspect` shows what this file describes.\n", name, known->released);
  }
  const Fields all = HfConfig(config.json(), config.file()).unread();  // nothing is read yet
  const std::vector<Reading> list = readings(config);
  std::set<std::string> read;
  for (const Reading& reading : list) {
    const std::set<std::string> unread(reading.unread.begin(), reading.unread.end());
    std::ranges::copy_if(all, std::inserter(read, read.end()),
                         [&](const std::string& f) { return !unread.contains(f); });
  }
  const Fields unknown = without(all, read);
  std::string text = fmt::format("'{}' is not in this version. Of the {} fields of {} that say what it computes,\n",
                                 name, all.size(), config.file());
  text += fmt::format("  {:<20} {}\n", "read for others", joined(without(all, {unknown.begin(), unknown.end()})));
  text += fmt::format("  {:<20} {}\n", "read for none", joined(unknown));
  text += "\nnearest architectures\n";
  constexpr size_t kShown = 3;
  for (size_t i = 0; i < std::min(kShown, list.size()); ++i) {
    const Reading& reading = list[i];
    text += fmt::format("  {:<20} {}\n", reading.architecture->model_type,
                        reading.decoder ? "reads all but: " + joined(reading.unread) : "refuses: " + reading.refusal);
  }
  if (list.front().decoder) {
    text += fmt::format("\nas {} it would have\n", list.front().architecture->model_type) +
            parts_text(*list.front().decoder);
  }
  return text;
}

int run_wanted_model(const std::filesystem::path& path) {
  print_text(wanted_text(std::filesystem::is_directory(path) ? HfConfig::read(path) : HfConfig::read_file(path)));
  return 0;
}

}  // namespace hone
