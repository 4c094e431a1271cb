#include "text/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "text/utf8.h"

namespace hone {

namespace {

constexpr const char* kVocabulary = "tiktoken.model";
constexpr const char* kOther = "save the tokenizer as tokenizer.json with transformers' AutoTokenizer.save_pretrained";
constexpr size_t kMaxVocabularyBytes = 32 << 20, kMaxTokenBytes = 256;
constexpr size_t kReservedTokens = 256;

constexpr std::array<std::string_view, 3> kMoonshotTypes = {"kimi_k2", "kimi_k25", "deepseek_v3"};

using Ranks = std::unordered_map<std::string, size_t>;

/// The bytes of a base64 text (RFC 4648), or nothing if it is none.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) return std::nullopt;
    bits = (bits << 6 | static_cast<uint32_t>(digit)) & 0xfff;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xff));
  }
  return bytes;
}

/// The tokens by rank: the ranks are 0, 1, 2, …
std::vector<std::string> read_tokens(const std::filesystem::path& file) {
  const std::string text = read_whole_file(file, kMaxVocabularyBytes);
  std::vector<std::string> tokens;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    size_t rank = 0;
    const std::optional<std::string> token = from_base64(line.substr(0, space));
    const char* const last = line.data() + line.size();
    const char* const number = space == line.npos ? last : line.data() + space + 1;
    const auto [rest, error] = std::from_chars(number, last, rank);
    if (!token || token->size() > kMaxTokenBytes || error != std::errc() || rest != last || rank != tokens.size()) {
      throw UserError(fmt::format("line {} is not a token in base64 and the rank {}", tokens.size() + 1, tokens.size()),
                      file.string(), "download the file again");
    }
    tokens.push_back(*token);
  }
  return tokens;
}

std::string in_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += byte_character(static_cast<uint8_t>(byte));
  return text;
}

/// Every way to make a token of two others, in the order in which tiktoken would take them.
Json merges_of(const std::vector<std::string>& tokens, const Ranks& ranks) {
  Json merges = Json::array();
  for (const std::string& token : tokens) {
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ranks.find(token.substr(0, cut)), right = ranks.find(token.substr(cut));
      if (left != ranks.end() && right != ranks.end()) pairs.emplace_back(left->second, right->second);
    }
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [left, right] : pairs)
      merges.push_back(in_alphabet(tokens[left]) + " " + in_alphabet(tokens[right]));
  }
  return merges;
}

/// The special tokens after `count` ranks, with the names that tokenizer_config.json gives them.
Json special_tokens(const std::filesystem::path& directory, size_t count) {
  Json named = Json::object();
  if (const auto config = read_json_if_there(directory / "tokenizer_config.json"); config && config->is_object()) {
    if (const auto found = config->find("added_tokens_decoder"); found != config->end()) named = *found;
  }
  Json tokens = Json::array();
  for (size_t id = count; id < count + kReservedTokens; ++id) {
    std::string content = fmt::format("<|reserved_token_{}|>", id);
    bool special = true;
    if (const auto token = named.find(std::to_string(id)); token != named.end() && token->is_object()) {
      if (const auto text = token->find("content"); text != token->end() && text->is_string()) content = *text;
      if (const auto flag = token->find("special"); flag != token->end() && flag->is_boolean()) special = *flag;
    }
    tokens.push_back({{"id", id},
                      {"content", content},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", special}});
  }
  return tokens;
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / "tokenizer.json") || std::filesystem::exists(directory / kVocabulary);
}

std::string tokenizer_json_of_tiktoken(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / kVocabulary;
  const std::optional<Json> config = read_json_if_there(directory / "config.json");
  const Json type = config && config->is_object() && config->contains("model_type") ? (*config)["model_type"] : Json();
  const bool known = std::any_of(kMoonshotTypes.begin(), kMoonshotTypes.end(),
                                 [&](std::string_view name) { return type == std::string(name); });
  if (!known) {
    throw UserError(fmt::format("how text is split before the tokens of {} is only known for the model_type kimi_k2, "
                                "kimi_k25 and deepseek_v3, not {}",
                                kVocabulary, type.dump()),
                    file.string(), kOther);
  }
  const std::vector<std::string> tokens = read_tokens(file);
  Ranks ranks;
  Json vocabulary = Json::object();
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    if (!ranks.emplace(tokens[rank], rank).second) {
      throw UserError(fmt::format("the token with the rank {} is there twice", rank), file.string(),
                      "download the file again");
    }
    // An ordered object searches for a key linearly before it inserts; these keys are distinct.
    vocabulary.get_ref<Json::object_t&>().push_back({in_alphabet(tokens[rank]), rank});
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", kMoonshotPattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json all = {{"version", "1.0"},
                    {"added_tokens", special_tokens(directory, tokens.size())},
                    {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level})}}},
                    {"decoder", byte_level},
                    {"model",
                     {{"type", "BPE"},
                      {"ignore_merges", true},
                      {"vocab", std::move(vocabulary)},
                      {"merges", merges_of(tokens, ranks)}}}};
  return all.dump();
}

}  // namespace hone
