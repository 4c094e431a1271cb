#include "app/convert_config/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "core/base/error.h"

namespace hone {
namespace {

constexpr size_t kMaxWords = 100'000;

bool is_name(std::string_view text) {
  const auto inside = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text[0])) &&
         std::all_of(text.begin(), text.end(), inside);
}

/// "${1:-0}", an argument of the script that a variable takes, as a variable of the environment: "${NODE_ID:-0}". Other
/// values as they are.
std::string named_argument(const std::string& variable, const std::string& value) {
  const auto digit = [&](size_t i) { return i < value.size() && std::isdigit(static_cast<unsigned char>(value[i])); };
  if (!value.starts_with("${") || !digit(2) || value.find('}') + 1 != value.size()) return value;
  size_t end = 2;
  while (digit(end)) ++end;
  return "${" + variable + value.substr(end);
}

/// Splits a script into commands and words, and expands variables.
class ShellReader {
 public:
  ShellReader(const std::string& text, const std::string& name) : text_(text), name_(name) {}

  std::vector<std::vector<ShellWord>> commands() {
    while (at_ < text_.size()) step();
    end_command();
    return std::move(commands_);
  }

  std::vector<ShellWord> environment() const { return environment_; }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  char take() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }

  void step() {
    const char c = peek();
    if (c == '\\' && peek(1) == '\n') {
      take();
      take();
    } else if (c == '\\' && peek(1) == '\r' && peek(2) == '\n') {
      at_ += 2;
      take();
    } else if (c == '#' && !started_) {
      while (at_ < text_.size() && peek() != '\n') take();
    } else if (c == '\n' || c == ';' || c == '|' || c == '&') {
      take();
      end_word();
      if (!in_array_) end_command();
    } else if (c == ' ' || c == '\t' || c == '\r') {
      take();
      end_word();
    } else if (in_array_ && c == ')') {
      take();
      end_word();
      end_array();
    } else {
      character(c);
    }
  }

  void character(char c) {
    if (!started_) where_ = fmt::format("{}:{}", name_, line_);
    started_ = true;
    if (c == '\'') {
      single_quoted();
    } else if (c == '"') {
      double_quoted();
    } else if (c == '$') {
      variable(false);
    } else if (c == '\\') {
      take();
      if (at_ < text_.size()) word_ += take();
    } else if (c == '(' && word_.ends_with('=') && is_name(word_.substr(0, word_.size() - 1))) {
      take();
      array_ = word_.substr(0, word_.size() - 1);
      in_array_ = true;
      word_.clear();
      started_ = false;
    } else {
      word_ += take();
    }
  }

  void single_quoted() {
    quoted_ = true;
    take();
    while (at_ < text_.size() && peek() != '\'') word_ += take();
    if (at_ < text_.size()) take();
  }

  void double_quoted() {
    quoted_ = true;
    take();
    while (at_ < text_.size() && peek() != '"') {
      if (peek() == '$') {
        variable(true);
      } else if (peek() == '\\' && (peek(1) == '"' || peek(1) == '\\' || peek(1) == '$' || peek(1) == '`')) {
        take();
        word_ += take();
      } else if (peek() == '\\' && peek(1) == '\n') {
        take();
        take();
      } else {
        word_ += take();
      }
    }
    if (at_ < text_.size()) take();
  }

  /// The text up to the bracket that closes the one at the current position.
  std::string bracketed(char open, char close) {
    std::string inside;
    int depth = 0;
    do {
      const char c = take();
      depth += c == open ? 1 : c == close ? -1 : 0;
      inside += c;
    } while (depth > 0 && at_ < text_.size());
    return inside;
  }

  void variable(bool in_quotes) {
    take();
    if (peek() == '(') {
      word_ += "$" + bracketed('(', ')');
      return;
    }
    std::string name;
    if (peek() == '{') {
      name = bracketed('{', '}');
      name = name.substr(1, name.size() - (name.ends_with('}') ? 2 : 1));
    } else {
      while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '_' || (name.empty() && peek() == '@')) {
        name += take();
      }
    }
    put(name, in_quotes);
  }

  /// What ${name} stands for: what the script sets; else itself, so that it is read from the environment later.
  std::string value_of(const std::string& name) const {
    const size_t fallback = std::min(name.find(":-"), name.find('-'));
    const std::string plain = name.substr(0, fallback);
    if (const auto found = variables_.find(plain); found != variables_.end()) return found->second;
    if (fallback == std::string::npos || !is_name(plain)) return fmt::format("${{{}}}", name);
    const std::string otherwise = with_own_variables(name.substr(name.find('-', fallback) + 1));
    if (otherwise.find("${") == std::string::npos) return fmt::format("${{{}:-{}}}", plain, otherwise);
    // A variable in a default cannot be written there: the environment decides now.
    const char* now = std::getenv(plain.c_str());
    return now ? now : otherwise;
  }

  /// The text of a default, with the variables that the script sets.
  std::string with_own_variables(const std::string& text) const {
    std::string result;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '$') {
        result += text[i++];
        continue;
      }
      const bool braces = text.compare(i, 2, "${") == 0;
      const size_t begin = i + (braces ? 2 : 1);
      size_t end = begin;
      while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_')) ++end;
      if (end == begin || (braces && (end == text.size() || text[end] != '}'))) {
        result += text[i++];
        continue;
      }
      result += value_of(text.substr(begin, end - begin));
      i = end + (braces ? 1 : 0);
    }
    return result;
  }

  void put(const std::string& name, bool in_quotes) {
    const bool whole = name.ends_with("[@]") || name.ends_with("[*]");
    const std::string array = whole ? name.substr(0, name.size() - 3) : "";
    if (const auto found = arrays_.find(array); whole && found != arrays_.end()) {
      const std::vector<ShellWord> words = found->second;
      for (const ShellWord& word : words) words_.push_back({word.text, where_});
      quoted_ = started_ = false;
      return;
    }
    std::string value = value_of(name);
    if (in_quotes || !word_.empty()) {
      word_ += value;
      return;
    }
    // An unquoted variable may contain several words.
    size_t begin = 0;
    for (size_t space; (space = value.find(' ', begin)) != std::string::npos; begin = space + 1) {
      if (space > begin) words_.push_back({value.substr(begin, space - begin), where_});
    }
    word_ = value.substr(begin);
    if (word_.empty()) started_ = false;
  }

  void end_word() {
    if (started_ && (!word_.empty() || quoted_)) {
      auto& list = in_array_ ? array_words_ : words_;
      list.push_back({word_, where_});
      if (list.size() > kMaxWords) throw UserError("the script has too many words", name_);
    }
    word_.clear();
    started_ = quoted_ = false;
  }

  void end_array() {
    arrays_[array_] = std::move(array_words_);
    array_words_.clear();
    in_array_ = false;
  }

  void end_command() {
    size_t first = 0;
    while (first < words_.size() && (words_[first].text == "export" || assign(words_[first]))) ++first;
    words_.erase(words_.begin(), words_.begin() + static_cast<std::ptrdiff_t>(first));
    if (!words_.empty()) commands_.push_back(std::move(words_));
    words_.clear();
  }

  bool assign(const ShellWord& word) {
    const size_t equals = word.text.find('=');
    if (equals == std::string::npos || !is_name(std::string_view(word.text).substr(0, equals))) return false;
    const std::string name = word.text.substr(0, equals);
    variables_[name] = named_argument(name, word.text.substr(equals + 1));
    environment_.push_back(word);
    return true;
  }

  const std::string& text_;
  const std::string& name_;
  size_t at_ = 0;
  int64_t line_ = 1;
  std::string word_, where_, array_;
  bool started_ = false, quoted_ = false, in_array_ = false;
  std::vector<ShellWord> words_, array_words_, environment_;
  std::vector<std::vector<ShellWord>> commands_;
  std::map<std::string, std::string> variables_;
  std::map<std::string, std::vector<ShellWord>> arrays_;
};

std::string file_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// The number of words of the program at `i`: a script, a module after -m, or a tool and its verb. 0: no program.
size_t program_at(const std::vector<ShellWord>& words, size_t i, std::string& program) {
  const std::string word = file_of(words[i].text);
  const std::string next = i + 1 < words.size() ? words[i + 1].text : "";
  if (word.ends_with(".py")) {
    program = word;
    return 1;
  }
  if ((word == "-m" || word == "--module") && next != "torch.distributed.run" && next != "torch.distributed.launch" &&
      !next.empty()) {
    program = next;
    return 2;
  }
  const bool pair = (word == "swift" && (next == "sft" || next == "pt")) ||
                    (word == "llamafactory-cli" && next == "train") || (word == "trl" && next == "sft") ||
                    (word == "axolotl" && next == "train");
  if (pair) program = word + " " + next;
  return pair ? 2 : 0;
}

int64_t number_behind(const std::vector<ShellWord>& words, std::initializer_list<std::string_view> flags) {
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].text.find('=');
    std::string flag = words[i].text.substr(0, equals);
    flag.erase(0, std::min(flag.find_first_not_of('-'), flag.size()));
    std::replace(flag.begin(), flag.end(), '-', '_');
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) continue;
    double value = 0;
    const std::string text = equals != std::string::npos ? words[i].text.substr(equals + 1)
                             : i + 1 < words.size()      ? words[i + 1].text
                                                         : "";
    if (parse_number(known_environment(text), value) && value >= 1 && value <= 1e6) return static_cast<int64_t>(value);
  }
  return 0;
}

int64_t devices_of(const TrainingCommand& command) {
  const int64_t all = number_behind(command.launcher, {"num_processes", "np", "n"});
  const int64_t nodes = std::max<int64_t>(1, number_behind(command.launcher, {"nnodes", "num_nodes"}));
  int64_t each = number_behind(command.launcher, {"nproc_per_node", "num_gpus"});
  for (const ShellWord& word : command.environment) {
    double value = 0;
    if (each == 0 && word.text.starts_with("NPROC_PER_NODE=") &&
        parse_number(known_environment(word.text.substr(15)), value) && value >= 1) {
      each = static_cast<int64_t>(value);
    }
  }
  return all > 0 ? all : std::max<int64_t>(1, each) * nodes;
}

std::optional<TrainingCommand> as_training(const std::vector<ShellWord>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    TrainingCommand command;
    const size_t length = program_at(words, i, command.program);
    if (length == 0) continue;
    const auto here = words.begin() + static_cast<std::ptrdiff_t>(i);
    command.launcher.assign(words.begin(), here);
    command.arguments.assign(here + static_cast<std::ptrdiff_t>(length), words.end());
    return command;
  }
  return std::nullopt;
}

size_t weight_of(const TrainingCommand& command) {
  const auto counts = [](const ShellWord& word) { return word.text.starts_with("--") || is_config_file(word.text); };
  return static_cast<size_t>(std::count_if(command.arguments.begin(), command.arguments.end(), counts));
}

}  // namespace

bool is_config_file(const std::string& written) {
  const std::string text = known_environment(written);
  return text.ends_with(".yaml") || text.ends_with(".yml") || text.ends_with(".json");
}

TrainingCommand read_shell_script(const std::string& text, const std::string& name) {
  ShellReader reader(text, name);
  std::optional<TrainingCommand> best;
  for (const std::vector<ShellWord>& words : reader.commands()) {
    std::optional<TrainingCommand> command = as_training(words);
    if (command && weight_of(*command) > (best ? weight_of(*best) : 0)) best = std::move(command);
  }
  if (!best) {
    throw UserError("the script starts no training that is known", name,
                    "give the configuration it uses, or its flags after the options of convert-config");
  }
  best->environment = reader.environment();
  best->devices = devices_of(*best);
  return *best;
}

ConfigNode flags_as_config(const std::vector<ShellWord>& words, std::vector<ShellWord>& files) {
  ConfigNode root;
  root.kind = ConfigNode::Kind::kMapping;
  const auto scalar = [](const std::string& text, const std::string& where) {
    ConfigNode node;
    const bool null = text.empty() || text == "null";
    node.kind = null ? ConfigNode::Kind::kNull : ConfigNode::Kind::kScalar;
    node.text = text;
    node.where = where;
    return node;
  };
  for (size_t i = 0; i < words.size();) {
    const ShellWord& word = words[i++];
    if (!word.text.starts_with("--")) {
      if (!is_config_file(word.text)) throw UserError(fmt::format("'{}' is not a flag", word.text), word.where);
      files.push_back(word);
      continue;
    }
    const size_t equals = word.text.find('=');
    const std::string name = word.text.substr(2, equals == std::string::npos ? equals : equals - 2);
    ConfigNode value = scalar(equals == std::string::npos ? "true" : word.text.substr(equals + 1), word.where);
    std::vector<ConfigNode> items;
    while (equals == std::string::npos && i < words.size() && !words[i].text.starts_with("--")) {
      items.push_back(scalar(words[i].text, words[i].where));
      ++i;
    }
    if (items.size() == 1) {
      value = items.front();
    } else if (items.size() > 1) {
      value.kind = ConfigNode::Kind::kSequence;
      value.text.clear();
      value.items = std::move(items);
    }
    value.where = word.where;
    root.members.emplace_back(name, std::move(value));
  }
  return root;
}

}  // namespace hone
