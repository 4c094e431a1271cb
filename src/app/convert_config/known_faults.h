// What `hone train` would refuse of a converted configuration, as far as its model and data are known on this machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/convert_config/translation.h"
#include "config/run_config.h"

namespace hone {

struct KnownFaults {
  std::vector<Remark> look;     ///< train stops with this; the translation itself is right
  std::vector<Remark> refused;  ///< images, video and audio, which would be left out
};

/// Checks a resolved configuration against the model: its folder, else a shape that Hone knows by its name, else the
/// family that the name states; and against the first rows of those data that are here. Reads no weights, and writes
/// nothing. `source`: the place in remarks.
KnownFaults known_faults(const RunConfig& run, const std::string& source);

/// Whether the model of a path or id has routed experts; nothing if that is not known.
std::optional<bool> has_experts(const std::string& model);

/// Whether the tokenizer of a folder has `token`; nothing if there is no tokenizer, or none that can be read.
std::optional<bool> has_token(const std::string& folder, const std::string& token);

}  // namespace hone
