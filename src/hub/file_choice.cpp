#include "hub/file_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/printable.h"

namespace hone {
namespace {

bool ends_with_any(const std::string& path, const auto& ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return path.ends_with(end); });
}

/// Programs, and files that run code when they are loaded.
bool is_program(const std::string& path) {
  static constexpr std::array<std::string_view, 12> kEnds = {".py",  ".pyc",   ".pyd", ".so",    ".sh",  ".dll",
                                                             ".exe", ".dylib", ".js",  ".ipynb", ".bat", ".ps1"};
  return ends_with_any(in_lower_case(path), kEnds);
}

bool is_pickle(const std::string& path) {
  static constexpr std::array<std::string_view, 6> kEnds = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5"};
  return ends_with_any(path, kEnds);
}

/// Files of the hub's own, or of git.
bool is_about_repository(const std::string& path) {
  return path.starts_with('.') || path.find("/.") != std::string::npos;
}

bool is_description_of_model(const std::string& path) {
  static constexpr std::array<std::string_view, 5> kEnds = {".json", ".jinja", ".txt", ".model", ".tiktoken"};
  if (path.starts_with("additional_chat_templates/")) return path.ends_with(".jinja");
  const bool own = path.find('/') == std::string::npos && !is_about_repository(path);
  const bool about_pickles =
      path.ends_with(".bin.index.json") || path.ends_with(".h5.index.json") || path.ends_with(".msgpack.index.json");
  const std::string name = in_lower_case(path);
  const bool license = name.starts_with("license") || name.starts_with("notice") || name.starts_with("requirements");
  return own && !about_pickles && !license && ends_with_any(path, kEnds);
}

/// Weights in the names that the model's library gives them: not those of another program beside them
/// (consolidated.safetensors), or in another precision (model.fp16.safetensors).
bool has_usual_name(const std::string& path) {
  if (path == "model.safetensors" || path == "adapter_model.safetensors") return true;
  return path.starts_with("model-") && path.find("-of-") != std::string::npos;
}

std::vector<RepoFile> matching(const RepoListing& listing, auto&& wanted) {
  std::vector<RepoFile> files;
  std::copy_if(listing.files.begin(), listing.files.end(), std::back_inserter(files), wanted);
  return files;
}

bool is_own_safetensors(const RepoFile& file) {
  return file.path.ends_with(".safetensors") && file.path.find('/') == std::string::npos;
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view path) {
  if (pattern.ends_with('/')) return matches_pattern(std::string(pattern) + "*", path);
  size_t p = 0, t = 0;
  size_t star = std::string_view::npos, star_text = 0;
  const auto one = [&](size_t& at) {  // whether one character matches at `at`, which moves past it
    if (at >= pattern.size()) return false;
    if (pattern[at] == '?') return ++at, true;
    const size_t close = pattern[at] == '[' ? pattern.find(']', at + 2) : std::string_view::npos;
    if (close == std::string_view::npos) return pattern[at++] == path[t];
    const bool inverted = pattern[at + 1] == '!' || pattern[at + 1] == '^';
    bool found = false;
    for (size_t i = at + (inverted ? 2 : 1); i < close; ++i) {
      const bool range = i + 2 < close && pattern[i + 1] == '-';
      found = found || (range ? pattern[i] <= path[t] && path[t] <= pattern[i + 2] : pattern[i] == path[t]);
      if (range) i += 2;
    }
    at = close + 1;
    return found != inverted;
  };
  while (t < path.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_text = t;
      continue;
    }
    size_t next = p;
    if (one(next)) {
      p = next;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<RepoFile> choose_descriptions(const RepoListing& listing) {
  return matching(listing, [](const RepoFile& file) { return is_description_of_model(file.path); });
}

std::vector<RepoFile> choose_files(RepoType type, const RepoListing& listing, const FilePatterns& patterns) {
  const auto any = [](const std::vector<std::string>& list, const RepoFile& file) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& p) { return matches_pattern(p, file.path); });
  };
  const bool usual = std::any_of(listing.files.begin(), listing.files.end(),
                                 [](const RepoFile& file) { return has_usual_name(file.path); });
  return matching(listing, [&](const RepoFile& file) {
    if (is_program(file.path) || any(patterns.exclude, file)) return false;
    if (!patterns.include.empty()) return any(patterns.include, file);
    if (type == RepoType::kDataset) return !is_about_repository(file.path) && !is_pickle(file.path);
    return is_description_of_model(file.path) || (is_own_safetensors(file) && (!usual || has_usual_name(file.path)));
  });
}

std::string model_fault(const Repo& repo, const RepoListing& listing) {
  if (std::any_of(listing.files.begin(), listing.files.end(), is_own_safetensors)) return "";
  const auto first = [&](auto&& wanted) {
    const auto found = std::find_if(listing.files.begin(), listing.files.end(), wanted);
    return found == listing.files.end() ? "" : found->path;
  };
  if (const std::string gguf = first([](const RepoFile& f) { return f.path.ends_with(".gguf"); }); !gguf.empty()) {
    return fmt::format(
        "it has GGUF files ({}), which are for programs that run a model: use the repository that they "
        "were made from",
        gguf);
  }
  if (const std::string pickle = first([](const RepoFile& f) { return is_pickle(f.path); }); !pickle.empty()) {
    return fmt::format(
        "it has pickles ({}), which are programs: use a repository of the same model with safetensors, "
        "or one of the conversions that its page lists under Community (write {}@refs/pr/N)",
        pickle, repo.id);
  }
  return "it has no weights";
}

const std::vector<std::string>& optional_files() {
  static const std::vector<std::string> kNames = {
      "adapter_config.json",    "added_tokens.json",    "chat_template.jinja",          "chat_template.json",
      "generation_config.json", "model.safetensors",    "model.safetensors.index.json", "special_tokens_map.json",
      "tokenizer.json",         "tokenizer_config.json"};
  return kNames;
}

}  // namespace hone
