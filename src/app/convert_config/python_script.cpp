#include "app/convert_config/python_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "core/base/error.h"

namespace hone {
namespace {

using TokenKind = PythonToken::Kind;

class Tokens {
 public:
  explicit Tokens(const std::string& text) : text_(text) {}

  std::vector<PythonToken> all() {
    while (at_ < text_.size()) step();
    add(TokenKind::kLineEnd, "");
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void step() {
    const char c = peek();
    if (c == '#') {
      while (at_ < text_.size() && peek() != '\n') ++at_;
    } else if (c == '\\' && peek(1) == '\n') {
      at_ += 2;
      ++line_;
    } else if (c == '\n') {
      if (depth_ == 0) add(TokenKind::kLineEnd, "");
      ++at_;
      ++line_;
    } else if (std::isspace(static_cast<unsigned char>(c))) {
      ++at_;
    } else if (c == '"' || c == '\'') {
      string("");
    } else if (std::isdigit(static_cast<unsigned char>(c)) ||
               (c == '.' && std::isdigit(static_cast<unsigned char>(peek(1))))) {
      number();
    } else if (is_word(c)) {
      word();
    } else {
      operation(c);
    }
  }

  void number() {
    const size_t begin = at_;
    while (is_word(peek()) || peek() == '.' ||
           ((peek() == '-' || peek() == '+') && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E'))) {
      ++at_;
    }
    add(TokenKind::kNumber, text_.substr(begin, at_ - begin));
  }

  void word() {
    const size_t begin = at_;
    while (is_word(peek())) ++at_;
    const std::string word = text_.substr(begin, at_ - begin);
    const bool prefix = word.size() <= 2 && word.find_first_not_of("rRbBuUfF") == std::string::npos;
    if (prefix && (peek() == '"' || peek() == '\'')) return string(word);
    add(TokenKind::kName, word);
  }

  void operation(char c) {
    if (c == '(' || c == '[' || c == '{') ++depth_;
    if (c == ')' || c == ']' || c == '}') depth_ = std::max(0, depth_ - 1);
    const bool power = c == '*' && peek(1) == '*', equal = (c == '=' || c == '!') && peek(1) == '=';
    add(TokenKind::kOperator, text_.substr(at_, power || equal ? 2 : 1));
    at_ += power || equal ? 2 : 1;
  }

  void string(const std::string& prefix) {
    const bool raw = prefix.find_first_of("rR") != std::string::npos;
    const TokenKind kind = prefix.find_first_of("fF") != std::string::npos ? TokenKind::kFormatted : TokenKind::kString;
    const int line = line_;
    const char quote = peek();
    const bool triple = peek(1) == quote && peek(2) == quote;
    at_ += triple ? 3 : 1;
    std::string value;
    while (at_ < text_.size()) {
      if (peek() == quote && (!triple || (peek(1) == quote && peek(2) == quote))) break;
      if (!triple && peek() == '\n') break;
      if (peek() == '\n') ++line_;
      if (peek() == '\\' && !raw && at_ + 1 < text_.size()) {
        ++at_;
        escape(value);
      } else {
        value += text_[at_++];
      }
    }
    at_ = std::min(text_.size(), at_ + (triple ? 3 : 1));
    tokens_.push_back({kind, std::move(value), line});
  }

  void escape(std::string& value) {
    const char c = text_[at_++];
    static constexpr std::pair<char, char> kEscapes[] = {{'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'0', '\0'}};
    if (c == '\n') {
      ++line_;
      return;
    }
    for (const auto& [letter, meant] : kEscapes) {
      if (letter == c) {
        value += meant;
        return;
      }
    }
    if (c != '\\' && c != '"' && c != '\'') value += '\\';
    value += c;
  }

  const std::string& text_;
  size_t at_ = 0;
  int line_ = 1, depth_ = 0;
  std::vector<PythonToken> tokens_;
};

}  // namespace

std::vector<PythonToken> python_tokens(const std::string& text) { return Tokens(text).all(); }

namespace {

using Node = ConfigNode;

constexpr int kMaxDepth = 32;

/// The subject of a call.
enum class Call {
  kNone,
  kArguments,
  kAdapters,
  kFastModel,
  kModel,
  kTrainer,
  kData,
  kResponsesOnly,
  kTemplate,
  kOther
};

Call call_of(const std::string& owner, const std::string& name) {
  static const std::map<std::string, Call> calls = {{"SFTConfig", Call::kArguments},
                                                    {"TrainingArguments", Call::kArguments},
                                                    {"Seq2SeqTrainingArguments", Call::kArguments},
                                                    {"UnslothTrainingArguments", Call::kArguments},
                                                    {"BitsAndBytesConfig", Call::kArguments},
                                                    {"LoraConfig", Call::kAdapters},
                                                    {"SFTTrainer", Call::kTrainer},
                                                    {"UnslothTrainer", Call::kTrainer},
                                                    {"Trainer", Call::kTrainer},
                                                    {"load_dataset", Call::kData},
                                                    {"train_on_responses_only", Call::kResponsesOnly},
                                                    {"get_chat_template", Call::kTemplate},
                                                    {"DPOTrainer", Call::kOther},
                                                    {"ORPOTrainer", Call::kOther},
                                                    {"KTOTrainer", Call::kOther},
                                                    {"CPOTrainer", Call::kOther},
                                                    {"GRPOTrainer", Call::kOther},
                                                    {"PPOTrainer", Call::kOther},
                                                    {"RewardTrainer", Call::kOther}};
  const bool fast = owner.starts_with("Fast") && owner.ends_with("Model");
  if (name == "get_peft_model") return fast ? Call::kAdapters : Call::kNone;
  if (name == "from_pretrained") {
    return fast ? Call::kFastModel : owner.starts_with("AutoModel") ? Call::kModel : Call::kNone;
  }
  const auto found = calls.find(name);
  return found == calls.end() ? Call::kNone : found->second;
}

/// Whether an argument only passes the result of another call.
bool is_plumbing(const std::string& name) {
  static const std::set<std::string> names = {
      "model",         "tokenizer",    "processing_class", "args",  "peft_config", "quantization_config",
      "train_dataset", "eval_dataset", "callbacks",        "token", "device_map",  "optimizers"};
  return names.contains(name);
}

class Reader {
 public:
  Reader(const std::string& text, const std::string& name) : tokens_(python_tokens(text)), name_(name) {
    script_.root.kind = Node::Kind::kMapping;
    script_.root.where = name + ":1";
    script_.tool = "transformers";
  }

  PythonScript read() {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i].kind != TokenKind::kName) continue;
      assignment(i);
      if (is(i + 1, "(")) call(i);
    }
    if (!trains_) {
      throw UserError("the script starts no supervised training that is known", name_,
                      "it is read where it calls SFTTrainer, or Trainer, with arguments that are literals");
    }
    if (script_.tool == "unsloth") state_unsloth_defaults();
    return std::move(script_);
  }

 private:
  bool is(size_t at, const char* text) const {
    return at < tokens_.size() && tokens_[at].kind == TokenKind::kOperator && tokens_[at].text == text;
  }
  std::string where(size_t at) const { return fmt::format("{}:{}", name_, tokens_[at].line); }
  void look(const std::string& said, size_t at, const std::string& why) {
    script_.look.push_back({said, where(at), why});
  }

  /// Reads a statement NAME = literal, or NAME: type = literal.
  void assignment(size_t at) {
    if (at > 0 && tokens_[at - 1].kind != TokenKind::kLineEnd) return;
    size_t equals = at + 1;
    if (is(equals, ":") && tokens_[equals + 1].kind == TokenKind::kName) equals += 2;
    if (!is(equals, "=")) return;
    size_t end = equals + 1;
    const std::optional<Node> value = expression(end, 0);
    if (value && tokens_[end].kind == TokenKind::kLineEnd) {
      variables_[tokens_[at].text] = *value;
    } else {
      variables_.erase(tokens_[at].text);
    }
  }

  void call(size_t at) {
    const std::string& name = tokens_[at].text;
    const std::string owner = at >= 2 && is(at - 1, ".") ? tokens_[at - 2].text : "";
    if (name == "map" && !owner.empty()) {
      return look(owner + ".map(…)", at, "the files of datasets hold the rows as that code makes them");
    }
    const Call kind = call_of(owner, name);
    if (kind == Call::kNone) return;
    if (kind == Call::kFastModel || name.starts_with("Unsloth")) script_.tool = "unsloth";
    if (script_.tool == "transformers" && (name.starts_with("SFT"))) script_.tool = "trl";
    trains_ |= kind == Call::kTrainer;
    if (kind == Call::kOther) {
      throw UserError(fmt::format("{} is not supervised fine-tuning", name), where(at),
                      "only supervised fine-tuning is in this version");
    }
    if (kind == Call::kResponsesOnly) {
      // The loss covers everything after the marker, an empty block of thoughts included.
      put("assistant_only_loss", scalar("true", at));
      put("learn_empty_thinking", scalar("true", at));
    }
    arguments(at + 2, kind);
  }

  /// Reads arguments; `at` is after the opening bracket.
  void arguments(size_t at, Call kind) {
    Node data;
    data.kind = Node::Kind::kMapping;
    data.where = where(at);
    for (int position = 0; !is(at, ")") && tokens_[at].kind != TokenKind::kEnd; ++position) {
      const bool named = tokens_[at].kind == TokenKind::kName && is(at + 1, "=");
      const std::string name = named ? tokens_[at].text : "";
      const size_t begin = named ? at + 2 : at;
      size_t end = begin;
      std::optional<Node> value = expression(end, 0);
      if (!is(end, ",") && !is(end, ")")) {
        value.reset();
        end = behind(begin);
      }
      if (kind == Call::kData) {
        if (value) data_argument(name, position, *value, data);
      } else if (named || position == 0) {
        argument(kind, name, value, begin, end);
      }
      at = is(end, ",") ? end + 1 : end;
    }
    if (kind == Call::kData) put_data(std::move(data));
  }

  void argument(Call kind, const std::string& name, const std::optional<Node>& value, size_t begin, size_t end) {
    if (kind == Call::kResponsesOnly) return;
    if (name.empty()) {
      if (value && (kind == Call::kFastModel || kind == Call::kModel)) put("model_name_or_path", *value);
      if (value && kind == Call::kArguments) put("output_dir", *value);
      return;
    }
    if (kind == Call::kTemplate && name != "chat_template") return;
    if (value)
      return put(name == "model_name" || name == "pretrained_model_name_or_path" ? "model_name_or_path" : name, *value);
    if (is_plumbing(name)) return;
    const std::string source = source_of(begin, end);
    if (source.find("bf16_supported") != std::string::npos || source.find("bfloat16_supported") != std::string::npos) {
      return;  // like Hone, they train in bfloat16 if it is supported
    }
    look(fmt::format("{} = {}", name, source), begin,
         name.ends_with("_func") || name.ends_with("collator") || name.starts_with("compute_")
             ? "Python code makes it: the files of datasets hold the rows as they are to be trained"
             : "its value is computed: state it");
  }

  /// Reads an argument of load_dataset("json", data_files="x.jsonl", split="train[:500]").
  static void data_argument(const std::string& name, int position, const Node& value, Node& data) {
    if (name.empty() && position == 0) data.put("path", value);
    if (name == "path") data.put("path", value);
    if (name == "data_files") {
      const Node* file = &value;
      if (file->kind == Node::Kind::kMapping && file->find("train")) file = file->find("train");
      if (file->kind == Node::Kind::kSequence && file->items.size() == 1) file = &file->items[0];
      if (file->kind == Node::Kind::kScalar) data.put("path", *file);
    }
    if (name == "split" && value.kind == Node::Kind::kScalar) data.put("split", value);
  }

  void put_data(Node data) {
    if (!data.find("path")) return;
    if (const Node* split = data.find("split")) {
      Node part = *split;
      const size_t slice = part.text.find("[:");
      if (slice != std::string::npos) {
        Node samples = part;
        samples.quoted = false;
        samples.text = part.text.substr(slice + 2, part.text.find(']') - slice - 2);
        data.put("samples", samples);
        part.text.resize(slice);
      }
      data.put("split", part);
      if (part.text == "train" || std::filesystem::path(data.find("path")->text).has_extension()) {
        std::erase_if(data.members, [](const ConfigMember& member) { return member.name == "split"; });
      }
    }
    const Node* before = script_.root.find("dataset");
    if (!before) return put("dataset", data);
    script_.look.push_back({"load_dataset: " + data.find("path")->text, data.where,
                            "it is not trained on: the script loads another data set first"});
  }

  void put(const std::string& name, const Node& value) { script_.root.put(name, value); }

  Node scalar(std::string text, size_t at, bool quoted = false) const {
    Node node;
    node.kind = Node::Kind::kScalar;
    node.text = std::move(text);
    node.quoted = quoted;
    node.where = where(at);
    return node;
  }

  /// Reads a literal and moves `at` after it; nullopt for other expressions.
  std::optional<Node> expression(size_t& at, int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    std::optional<Node> left = term(at, depth);
    while (left && tokens_[at].kind == TokenKind::kOperator) {
      const std::string sign = tokens_[at].text;
      if (std::string_view("+-*/**").find(sign) == std::string_view::npos) break;
      const size_t place = at++;
      const std::optional<Node> right = term(at, depth);
      double a = 0, b = 0;
      if (!right || !parse_number(left->text, a) || !parse_number(right->text, b)) return std::nullopt;
      const double value = sign == "+"   ? a + b
                           : sign == "-" ? a - b
                           : sign == "*" ? a * b
                           : sign == "/" ? a / b
                                         : std::pow(a, b);
      if (!std::isfinite(value)) return std::nullopt;
      left = scalar(fmt::format("{}", value), place);
    }
    return left;
  }

  std::optional<Node> term(size_t& at, int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    const PythonToken& token = tokens_[at];
    if (is(at, "-") || is(at, "+")) {
      const bool minus = is(at, "-");
      std::optional<Node> value = term(++at, depth + 1);
      double number = 0;
      if (!value || !parse_number(value->text, number)) return std::nullopt;
      if (minus) value->text = "-" + value->text;
      return value;
    }
    if (is(at, "[") || is(at, "(")) return sequence(at, depth);
    if (is(at, "{")) return dictionary(at, depth);
    if (token.kind == TokenKind::kNumber) {
      std::string text = token.text;
      std::erase(text, '_');
      return scalar(text, at++);
    }
    if (token.kind == TokenKind::kString) {
      Node text = scalar("", at, true);
      while (tokens_[at].kind == TokenKind::kString) text.text += tokens_[at++].text;
      return text;
    }
    if (token.kind == TokenKind::kName) return named(at);
    return std::nullopt;
  }

  std::optional<Node> named(size_t& at) {
    const size_t place = at;
    std::string path = tokens_[at++].text;
    while (is(at, ".") && tokens_[at + 1].kind == TokenKind::kName) {
      path += "." + tokens_[at + 1].text;
      at += 2;
    }
    if (is(at, "(") || is(at, "[")) return std::nullopt;
    if (path == "True" || path == "False") return scalar(path == "True" ? "true" : "false", place);
    if (path == "None") {
      Node none;
      none.where = where(place);
      return none;
    }
    if (path.starts_with("torch.")) return scalar(path.substr(6), place);
    const auto known = variables_.find(path);
    if (known == variables_.end()) return std::nullopt;
    Node value = known->second;
    value.where = where(place);
    return value;
  }

  std::optional<Node> sequence(size_t& at, int depth) {
    Node list;
    list.kind = Node::Kind::kSequence;
    list.where = where(at);
    const bool tuple = is(at, "(");
    const char* close = tuple ? ")" : "]";
    bool comma = false;
    for (++at; !is(at, close);) {
      std::optional<Node> item = expression(at, depth + 1);
      if (!item || (!is(at, ",") && !is(at, close))) return std::nullopt;
      list.items.push_back(std::move(*item));
      if (is(at, ",")) {
        comma = true;
        ++at;
      }
    }
    ++at;
    if (tuple && !comma && list.items.size() == 1) return list.items[0];  // brackets around one value
    return list;
  }

  std::optional<Node> dictionary(size_t& at, int depth) {
    Node mapping;
    mapping.kind = Node::Kind::kMapping;
    mapping.where = where(at);
    for (++at; !is(at, "}");) {
      const std::optional<Node> name = expression(at, depth + 1);
      if (!name || name->kind != Node::Kind::kScalar || !is(at, ":")) return std::nullopt;
      std::optional<Node> value = expression(++at, depth + 1);
      if (!value || (!is(at, ",") && !is(at, "}"))) return std::nullopt;
      mapping.members.emplace_back(name->text, std::move(*value));
      if (is(at, ",")) ++at;
    }
    ++at;
    return mapping;
  }

  /// The position of the comma or bracket that ends the argument at `at`.
  size_t behind(size_t at) const {
    for (int depth = 0; tokens_[at].kind != TokenKind::kEnd; ++at) {
      if (is(at, "(") || is(at, "[") || is(at, "{")) ++depth;
      if (depth == 0 && (is(at, ",") || is(at, ")"))) return at;
      if (is(at, ")") || is(at, "]") || is(at, "}")) --depth;
    }
    return at;
  }

  std::string source_of(size_t begin, size_t end) const {
    constexpr size_t kLongest = 50;
    std::string text;
    for (size_t i = begin; i < end && text.size() < kLongest; ++i) text += tokens_[i].text;
    return text;
  }

  /// FastLanguageModel loads the base in 4 bits by default.
  void state_unsloth_defaults() {
    for (const char* name : {"load_in_4bit", "load_in_8bit", "load_in_16bit", "full_finetuning"}) {
      if (script_.root.find(name)) return;
    }
    Node stated = scalar("true", 0);
    stated.where = name_ + ", Unsloth's default";
    put("load_in_4bit", stated);
  }

  const std::vector<PythonToken> tokens_;
  const std::string& name_;
  std::map<std::string, Node> variables_;
  PythonScript script_;
  bool trains_ = false;
};

}  // namespace

PythonScript read_python_script(const std::string& text, const std::string& name) { return Reader(text, name).read(); }

}  // namespace hone
