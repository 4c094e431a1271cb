#include "text/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace hone {
namespace {

/// The split pattern of Qwen2 to Qwen3: contractions, words with one leading sign, single digits, signs, line ends,
/// spaces.
constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return std::hash<uint64_t>()(uint64_t(uint32_t(pair.first)) << 32 | uint32_t(pair.second));
  }
};

/// A distinct piece of the corpus, as its present tokens.
struct Word {
  std::vector<int32_t> tokens;
  int64_t count;
};

/// Counts of all pairs of adjacent tokens, updated by each merge.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t i = 0; i < words_.size(); ++i) add_pairs(i, 1);
    for (const auto& [pair, count] : counts_) queue_.push({count, pair});
  }

  /// The pair to merge next; its count is 0 when no pair is left.
  std::pair<Pair, int64_t> best() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const int64_t count = counts_[top.pair];
      if (count == top.count) return {top.pair, count};
      // The count of a queued pair only falls (a rise queues the pair again), so requeue it with its present count.
      if (count > 0 && count < top.count) queue_.push({count, top.pair});
    }
    return {};
  }

  void merge(const Pair& pair, int32_t merged) {
    changed_.clear();
    const std::unordered_set<size_t> where = std::move(words_of_[pair]);
    for (const size_t word : where) {
      add_pairs(word, -1);
      replace(words_[word].tokens, pair, merged);
      add_pairs(word, 1);
    }
    for (const Pair& changed : changed_)
      if (counts_[changed] > 0) queue_.push({counts_[changed], changed});
    counts_.erase(pair);
    words_of_.erase(pair);
  }

 private:
  struct Candidate {
    int64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void add_pairs(size_t word, int64_t sign) {
    const std::vector<int32_t>& tokens = words_[word].tokens;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const Pair pair{tokens[i], tokens[i + 1]};
      counts_[pair] += sign * words_[word].count;
      if (sign < 0) continue;
      words_of_[pair].insert(word);
      changed_.insert(pair);
    }
  }

  static void replace(std::vector<int32_t>& tokens, const Pair& pair, int32_t merged) {
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool found = i + 1 < tokens.size() && tokens[i] == pair.first && tokens[i + 1] == pair.second;
      tokens[kept++] = found ? merged : tokens[i];
      i += found;
    }
    tokens.resize(kept);
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, int64_t, PairHash> counts_;
  // may contain words that no longer have the pair
  std::unordered_map<Pair, std::unordered_set<size_t>, PairHash> words_of_;
  std::unordered_set<Pair, PairHash> changed_;
  std::priority_queue<Candidate> queue_;
};

Json added_token(const std::string& content, size_t id, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json byte_level_json(bool add_prefix_space, bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

/// Builds a tokenizer.json with `tokens` as vocabulary; the added tokens have the next ids.
Json tokenizer_json(const std::vector<std::string>& tokens, Json merges, const BpeTrainerOptions& options) {
  Json vocab = Json::object();
  // ordered_json searches for a key linearly before it inserts; these keys are distinct.
  for (size_t id = 0; id < tokens.size(); ++id) vocab.get_ref<Json::object_t&>().push_back({tokens[id], id});
  Json added = Json::array();
  for (const std::string& token : options.special_tokens)
    added.push_back(added_token(token, tokens.size() + added.size(), true));
  for (const std::string& token : options.text_tokens)
    added.push_back(added_token(token, tokens.size() + added.size(), false));
  const Json split{
      {"type", "Split"}, {"pattern", {{"Regex", kQwenPattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer",
           {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level_json(false, false, false)})}}},
          {"post_processor", byte_level_json(false, false, false)},
          {"decoder", byte_level_json(false, false, false)},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", std::move(vocab)},
            {"merges", std::move(merges)}}}};
}

/// The 256 characters of the byte-level all_byte_characters by code point, in the order in which other tokenizers
/// number them.
std::vector<std::string> all_byte_characters() {
  std::vector<std::string> characters;
  for (int byte = 0; byte < 256; ++byte) characters.push_back(byte_character(uint8_t(byte)));
  std::sort(characters.begin(), characters.end());
  return characters;
}

/// The pieces of the corpus, split by the tokenizer that will use the merges, as tokens of single bytes.
std::vector<Word> count_words(std::span<const std::string> texts, const Tokenizer& bytes) {
  std::map<std::string, int64_t> counts;
  for (const std::string& text : texts)
    for (std::string& piece : bytes.pieces(text)) ++counts[std::move(piece)];
  std::vector<Word> words;
  for (const auto& [piece, count] : counts) {
    Word word{{}, count};
    for (const char byte : piece) word.tokens.push_back(*bytes.token_to_id(byte_character(uint8_t(byte))));
    words.push_back(std::move(word));
  }
  return words;
}

void check_options(const BpeTrainerOptions& options) {
  std::unordered_set<std::string> seen;
  for (const auto* tokens : {&options.special_tokens, &options.text_tokens})
    for (const std::string& token : *tokens)
      if (token.empty() || !seen.insert(token).second)
        throw UserError(fmt::format("the added token '{}' is empty or given twice", token));
  const size_t least = 256 + seen.size();
  if (options.vocab_size < 0 || size_t(options.vocab_size) < least || options.vocab_size > kMaxTokenId)
    throw UserError(fmt::format("a vocabulary of {} is too small for 256 bytes and {} added tokens", options.vocab_size,
                                seen.size()),
                    {}, fmt::format("set it to {} to {} tokens", least, kMaxTokenId));
}

}  // namespace

Json train_bpe(std::span<const std::string> texts, const BpeTrainerOptions& options) {
  check_options(options);
  std::vector<std::string> tokens = all_byte_characters();
  const Tokenizer bytes = Tokenizer::parse(tokenizer_json(tokens, Json::array(), options).dump(), "tokenizer");
  PairCounts pairs(count_words(texts, bytes));
  std::unordered_map<std::string, int32_t> ids;
  Json merges = Json::array();
  const size_t wanted = size_t(options.vocab_size) - options.special_tokens.size() - options.text_tokens.size();
  while (tokens.size() < wanted) {
    const auto [pair, count] = pairs.best();
    if (count < std::max<int64_t>(options.min_frequency, 1)) break;
    merges.push_back(Json::array({tokens[pair.first], tokens[pair.second]}));
    // Different pairs may give the same token ("a" + "bc", "ab" + "c"), which has one id.
    const std::string merged = tokens[pair.first] + tokens[pair.second];
    const auto [entry, is_new] = ids.try_emplace(merged, int32_t(tokens.size()));
    if (is_new) tokens.push_back(merged);
    pairs.merge(pair, entry->second);
  }
  return tokenizer_json(tokens, std::move(merges), options);
}

void write_tokenizer_json(const Json& tokenizer, const std::filesystem::path& file) {
  write_durably(file, tokenizer.dump(2) + "\n");
}

}  // namespace hone
