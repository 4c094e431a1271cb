#include "data/readers/code/code_samples.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "data/readers/byte_reader.h"
#include "data/readers/code/code_items.h"

namespace hone {
namespace {

constexpr std::array<std::string_view, kCodeSampleKinds> kKindNames = {
    "full_file",        "chunk",      "function_signature", "struct_definition",
    "trait_definition", "impl_block", "module_structure"};

/// The kind of sample of an item; imports and modules have none.
std::optional<CodeSampleKind> kind_of(const CodeItem& item) {
  switch (item.kind) {
    case CodeItemKind::kFunction:
      return CodeSampleKind::kFunctionSignature;
    case CodeItemKind::kStruct:
      return CodeSampleKind::kStructDefinition;
    case CodeItemKind::kTrait:
      return CodeSampleKind::kTraitDefinition;
    case CodeItemKind::kImpl:
      return CodeSampleKind::kImplBlock;
    case CodeItemKind::kImport:
    case CodeItemKind::kModule:
      break;
  }
  return std::nullopt;
}

/// `text` without white space at its end.
std::string_view stripped(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  return last == std::string_view::npos ? std::string_view{} : text.substr(0, last + 1);
}

/// The words of a text, separated by one space.
std::string on_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (!is_blank(c)) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  return std::string(stripped(line));
}

class FileSampler {
 public:
  FileSampler(std::string_view text, const CodeSampleOptions& options, const TokenCounter& count,
              CodeKindCounts& counts)
      : text_(text), options_(options), count_(count), counts_(counts) {}

  std::vector<CodeSample> run(CodeLanguage language, const std::string& path) {
    std::vector<CodeItem> items = code_items(text_, language);
    if (!options_.include_tests) std::erase_if(items, [](const CodeItem& item) { return item.is_test; });
    const int64_t tokens = count_(text_);
    if (tokens <= options_.max_tokens) {
      add(CodeSampleKind::kFullFile, text_, 0, tokens);
    } else {
      chunks();
    }
    for (const CodeSampleKind kind : {CodeSampleKind::kFunctionSignature, CodeSampleKind::kStructDefinition,
                                      CodeSampleKind::kTraitDefinition, CodeSampleKind::kImplBlock}) {
      if (wants(kind)) add_items(items, kind);
    }
    if (wants(CodeSampleKind::kModuleStructure) && !items.empty()) {
      const std::string outline = structure(items, language, path);
      add(CodeSampleKind::kModuleStructure, outline, 0, count_(outline));
    }
    return std::move(samples_);
  }

 private:
  bool wants(CodeSampleKind kind) const {
    return std::find(options_.kinds.begin(), options_.kinds.end(), kind) != options_.kinds.end();
  }

  void add(CodeSampleKind kind, std::string_view text, size_t at, int64_t tokens) {
    if (!wants(kind)) return;
    CodeKindCount& count = counts_[static_cast<size_t>(kind)];
    ++count.found;
    if (tokens < options_.min_tokens) {
      ++count.too_short;
    } else if (tokens > options_.max_tokens && kind != CodeSampleKind::kChunk) {
      ++count.too_long;
    } else {
      ++count.created;
      const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at), '\n');
      samples_.push_back({kind, std::string(text), line});
    }
  }

  void add_items(const std::vector<CodeItem>& items, CodeSampleKind kind) {
    for (const CodeItem& item : items) {
      if (kind_of(item) != kind) continue;
      const size_t end = kind == CodeSampleKind::kFunctionSignature ? item.heading_end : item.end;
      const std::string_view part = stripped(text_.substr(item.begin, end - item.begin));
      add(kind, part, item.begin, count_(part));
    }
  }

  /// Adds chunks of whole lines, each up to max_tokens. Counts the tokens of each line separately, which gives at most
  /// a few more than for the whole text.
  void chunks() {
    std::vector<size_t> begins;
    std::vector<int64_t> tokens;
    for (size_t begin = 0; begin < text_.size();) {
      const size_t end = std::min(text_.find('\n', begin), text_.size() - 1) + 1;
      begins.push_back(begin);
      tokens.push_back(count_(text_.substr(begin, end - begin)));
      begin = end;
    }
    for (size_t first = 0; first < begins.size();) {
      size_t behind = first;
      int64_t sum = 0;
      while (behind < begins.size() && (behind == first || sum + tokens[behind] <= options_.max_tokens))
        sum += tokens[behind++];
      const size_t end = behind < begins.size() ? begins[behind] : text_.size();
      add(CodeSampleKind::kChunk, text_.substr(begins[first], end - begins[first]), begins[first], sum);
      if (behind == begins.size()) return;
      // Go back over lines that fit into the overlap, but advance by at least one line.
      size_t next = behind;
      int64_t shared = 0;
      while (next > first + 1 && shared + tokens[next - 1] <= options_.overlap) shared += tokens[--next];
      first = next;
    }
  }

  std::string structure(const std::vector<CodeItem>& items, CodeLanguage language, const std::string& path) const {
    std::string outline = fmt::format("{} {}\n", language == CodeLanguage::kPython ? "#" : "//", path);
    for (const CodeItem& item : items) {
      std::string heading = on_one_line(text_.substr(item.declaration, item.signature_end - item.declaration));
      const bool has_body = item.end > item.signature_end + 1 && item.kind != CodeItemKind::kImport;
      if (has_body && language != CodeLanguage::kPython) heading += " { … }";
      outline += std::string(static_cast<size_t>(item.depth) * 4, ' ') + heading + "\n";
    }
    return outline;
  }

  std::string_view text_;
  const CodeSampleOptions& options_;
  const TokenCounter& count_;
  CodeKindCounts& counts_;
  std::vector<CodeSample> samples_;
};

}  // namespace

std::string_view name_of(CodeSampleKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

CodeSampleKind code_sample_kind_of(std::string_view name) {
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (found == kKindNames.end()) {
    throw UserError(fmt::format("there is no kind of code sample '{}'.{}", name, did_you_mean(name, kKindNames)),
                    "datasets", fmt::format("kinds are {}", fmt::join(kKindNames, ", ")));
  }
  return static_cast<CodeSampleKind>(found - kKindNames.begin());
}

std::vector<CodeSample> code_samples(std::string_view text, CodeLanguage language, const std::string& path,
                                     const CodeSampleOptions& options, const TokenCounter& count,
                                     CodeKindCounts& counts) {
  return FileSampler(text, options, count, counts).run(language, path);
}

}  // namespace hone
