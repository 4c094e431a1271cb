// The options of verbs that read the configuration of a run: hone train, validate, prepare and eval.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/train/train_verbs.h"

namespace CLI {
class App;
}

namespace hone {

/// Options of a verb that reads a configuration: CONFIG or --config CONFIG, --log-level, --verbose; other arguments are
/// overrides.
struct ConfigOptions {
  std::string config, log_level;
  bool verbose = false;
};

std::shared_ptr<ConfigOptions> add_config(CLI::App* verb);

/// UserError if neither a file nor an override is given, and for an unknown log level.
RunRequest request_of(const ConfigOptions& options, std::vector<std::string> overrides);

/// What the words of a `hone train`, "train" first, ask for; none for --help, or a mistake of the options. UserError as
/// request_of().
std::optional<RunRequest> parse_train(const std::vector<std::string>& words);

}  // namespace hone
