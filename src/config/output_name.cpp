#include "config/output_name.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/resolve_rules.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

constexpr const char* kKey = "output_dir";

/// Keys whose value the number of ranks determines where they are not stated.
constexpr const char* kOfRanks[] = {"per_device_train_batch_size", "gradient_accumulation_steps", "global_batch_size"};

/// Keys that differ between a run and the one that resumes it, or that output_dir itself determines.
constexpr const char* kOfTheFolder[] = {
    kKey, "run_name", "logging_dir", "export_dir", "resume_from_checkpoint", "overwrite_output_dir"};

template <size_t count>
bool is_one_of(const char* const (&names)[count], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// The length of "${NAME}" at `at`, a variable that a shell will read; 0: there is none.
size_t variable_at(const std::string& text, size_t at) {
  if (text.compare(at, 2, "${") != 0) return 0;
  const size_t end = text.find('}', at);
  return end == std::string::npos ? 0 : end + 1 - at;
}

bool is_scalar(const KeySpec& key) {
  return key.load && key.type != KeyType::kStringList && key.type != KeyType::kMapping && key.type != KeyType::kNamed &&
         key.type != KeyType::kDatasets;
}

class Name {
 public:
  explicit Name(const ResolvedConfig& config) : config_(config) {}

  std::string of(const std::string& text) const {
    std::string name;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (const size_t length = variable_at(text, i); length > 0) {
        name += text.substr(i, length);
        i += length - 1;
      } else if (c != '{' && c != '}') {
        name += c;
      } else if (i + 1 < text.size() && text[i + 1] == c) {
        name += text[i++];
      } else {
        const size_t end = c == '{' ? text.find('}', i) : std::string::npos;
        if (end == std::string::npos)
          refuse(fmt::format("'{}' has a single brace", text), "write {{ or }} for a brace");
        name += value_of(text.substr(i + 1, end - i - 1));
        i = end;
      }
    }
    return name;
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const {
    throw UserError(fmt::format("{}: {}", kKey, what), where(config_, kKey), fix);
  }

  std::string value_of(const std::string& written) const {
    const FoundKey found = find_key(schema(), "", config_name(written));
    if (!found.key) {
      refuse(
          fmt::format("{{{}}} is not a key.{}", written, did_you_mean(config_name(written), writable_names(schema()))),
          "name a key, such as {learning_rate}; {{ and }} are braces");
    }
    const KeySpec& key = *found.key;
    if (!is_scalar(key)) refuse(fmt::format("{{{}}} has no single value", key.name), "name a key with one value");
    if (is_one_of(kOfTheFolder, key.name)) {
      refuse(fmt::format("{{{}}} is not the same when the run is resumed, or follows from output_dir", key.name),
             "name another key");
    }
    if (is_one_of(kOfRanks, key.name) && !config_.states(key.name)) {
      refuse(fmt::format("{{{}}} is not stated, and depends on the number of ranks", key.name),
             "state it, or name another key");
    }
    return checked(key, key.load(config_.run));
  }

  std::string checked(const KeySpec& key, const Json& value) const {
    if (value.is_null() || value == "auto") {
      refuse(fmt::format("{{{}}} has no value, or none before the model and the data are read", key.name),
             fmt::format("state {}, or name another key", key.name));
    }
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    const bool plain = std::none_of(text.begin(), text.end(), [](unsigned char c) { return c == '/' || c < ' '; });
    if (!plain || text.empty() || text == "." || text == "..") {
      refuse(fmt::format("the value of {{{}}} is '{}', which cannot be a part of a folder's name", key.name, text),
             "name a key whose value has no slash");
    }
    return text;
  }

  const ResolvedConfig& config_;
};

}  // namespace

void name_output(ResolvedConfig& config) {
  std::string& output = config.run.report.output_dir;
  if (output.find_first_of("{}") == std::string::npos) return;
  output = Name(config).of(output);
}

std::string with_literal_braces(const std::string& path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    const size_t length = variable_at(path, i);
    const char c = path[i];
    if (length > 0) {
      text += path.substr(i, length);
      i += length - 1;
    } else {
      text.append(c == '{' || c == '}' ? 2 : 1, c);
    }
  }
  return text;
}

}  // namespace hone
