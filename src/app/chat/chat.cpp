#include "app/chat/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>

#include "app/output.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "report/terminal.h"
#include "text/tokenizer.h"

namespace hone {
namespace {

constexpr size_t kMostPromptBytes = size_t{64} << 20;  // the longest line
constexpr int kPollMilliseconds = 100;                 // another thread may receive the signal

// A signal handler can access static storage only.
volatile std::sig_atomic_t ctrl_c_pressed = 0;

void remember(int) { ctrl_c_pressed = 1; }

}  // namespace

CtrlC::CtrlC() {
  ctrl_c_pressed = 0;
  std::signal(SIGINT, remember);
}

CtrlC::~CtrlC() { std::signal(SIGINT, SIG_DFL); }

bool CtrlC::pressed() { return ctrl_c_pressed != 0; }

bool CtrlC::take() {
  const bool was = pressed();
  ctrl_c_pressed = 0;
  return was;
}

LineReader::Event LineReader::next(std::string& line) {
  while (true) {
    if (CtrlC::take()) {
      buffer_.clear();
      return Event::kCtrlC;
    }
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos || (ended_ && !buffer_.empty())) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Event::kLine;
    }
    if (ended_) return Event::kEnd;
    pollfd waiting{descriptor_, POLLIN, 0};
    if (poll(&waiting, 1, kPollMilliseconds) <= 0) continue;
    char bytes[4096];
    const ssize_t got = read(descriptor_, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    ended_ = got <= 0;  // a closed terminal ends the conversation, too
    if (got > 0) buffer_.append(bytes, static_cast<size_t>(got));
    if (buffer_.size() > kMostPromptBytes) {
      throw UserError("a line is longer than 64 MiB", "standard input", "write shorter messages");
    }
  }
}

namespace {

constexpr int64_t kDefaultMaxLength = 8192;  // keys and values of a long context take much memory

constexpr const char* kHelp =
    "  /reset          begin a new conversation\n"
    "  /undo           take back the last message and its answer\n"
    "  /system TEXT    set the system message (without a text: remove it)\n"
    "  /save FILE      add the conversation to a JSONL file, as training reads it\n"
    "  /help           this list\n"
    "  /exit           end; so does Ctrl-D\n"
    "  A line that ends in \\ continues in the next line; // at the start means /. Ctrl-C stops an answer.\n";

/// Whether a file begins with a row of JSONL.
bool begins_with_row(std::string_view beginning) {
  const size_t end = beginning.find('\n');
  if (end == std::string_view::npos) return beginning.starts_with('{');  // a long row
  return Json::parse(beginning.substr(0, end), nullptr, false).is_object();
}

/// The messages so far.
class ChatSession {
 public:
  explicit ChatSession(std::string system) : system_(std::move(system)) {}

  Json messages() const {
    Json all = Json::array();
    if (!system_.empty()) all.push_back({{"role", "system"}, {"content", system_}});
    for (const Json& message : turns_) all.push_back(message);
    return all;
  }
  bool empty() const { return turns_.empty(); }
  void add(const char* role, const std::string& content) { turns_.push_back({{"role", role}, {"content", content}}); }
  /// Removes the user's last message and all messages after it.
  bool undo() {
    if (turns_.empty()) return false;
    while (!turns_.empty()) {
      const bool user = turns_.back()["role"] == "user";
      turns_.erase(turns_.size() - 1);
      if (user) break;
    }
    return true;
  }
  void reset() { turns_ = Json::array(); }
  void set_system(std::string system) { system_ = std::move(system); }

 private:
  std::string system_;
  Json turns_ = Json::array();
};

class ChatRun {
 public:
  explicit ChatRun(const ChatOptions& options)
      : options_(options),
        model_(options),
        conversation_(options.system),
        interactive_(isatty(options.input) != 0),
        reader_(options.input) {
    if (!model_.chat().has_template()) {
      throw UserError("the model has no chat template, which a conversation needs", options.model,
                      "give one with --chat-template, or continue texts with hone generate --raw");
    }
    if (options.max_length < 0) throw UserError("the conversation has no room", "--max-length", "give at least 2");
    const int64_t context = model_.context();
    max_length_ = std::min(context, options.max_length > 0 ? options.max_length : kDefaultMaxLength);
    generator_ = &model_.load({.max_sequences = 1, .max_length = std::max<int64_t>(max_length_, 2), .keep_cache = true},
                              [this](const std::string& line) { note(line); });
    request_.sampling = model_.sampling();
    request_.stop_ids = model_.stop_ids();
    for (const std::string& line : model_.notes()) note(line);
    if (const std::optional<std::string> warning = model_.warning_of_thinking()) note(*warning);
  }

  void run() {
    std::optional<CtrlC> ctrl_c;
    if (interactive_) {
      ctrl_c.emplace();
      request_.stop = [] { return CtrlC::pressed(); };
      note(fmt::format("{} tokens of context. /help lists commands, /exit ends.", max_length_));
    }
    std::string message;
    while (!ended_) {
      if (interactive_) print_error(message.empty() ? "> " : "… ");
      std::string line;
      const LineReader::Event event = reader_.next(line);
      if (event == LineReader::Event::kEnd) break;
      if (event == LineReader::Event::kCtrlC) {
        message.clear();
        note("\n/exit or Ctrl-D ends the conversation");
        continue;
      }
      const bool goes_on = line.ends_with('\\');
      if (goes_on) line.back() = '\n';
      message += line;
      if (goes_on) continue;
      handle(std::exchange(message, ""));
    }
    if (!message.empty()) handle(message);
    if (interactive_) print_error("\n");
  }

 private:
  void note(const std::string& text) const { print_error(styled(text, Style::kDim, terminal_.color) + "\n"); }

  void handle(const std::string& message) {
    if (message.find_first_not_of(" \t\n") == std::string::npos) return;
    try {
      if (message.starts_with("//")) {
        answer(message.substr(1));
      } else if (message.starts_with('/')) {
        command(message.substr(1));
      } else {
        answer(message);
      }
    } catch (const UserError& error) {
      if (!interactive_) throw;
      print_error(std::string(error.what()) + "\n");
    }
  }

  void command(const std::string& text) {
    const size_t space = text.find(' ');
    const std::string name = text.substr(0, space);
    const std::string argument = space == std::string::npos ? "" : text.substr(text.find_first_not_of(' ', space));
    if (name == "help") {
      print_error(kHelp);
    } else if (name == "exit" || name == "quit") {
      ended_ = true;
    } else if (name == "reset") {
      conversation_.reset();
      note("a new conversation");
    } else if (name == "undo") {
      note(conversation_.undo() ? "the last message and its answer are gone" : "there is nothing to take back");
    } else if (name == "system") {
      conversation_.set_system(argument);
      note(argument.empty() ? "no system message" : "the system message is set");
    } else if (name == "save") {
      save(argument);
    } else {
      const char* const known[] = {"reset", "undo", "system", "save", "help", "exit"};
      throw UserError(fmt::format("'/{}' is not a command.{}", name, did_you_mean(name, known)), "",
                      "/help lists them; begin a message with // where it begins with /");
    }
  }

  void save(const std::string& path) {
    if (path.empty()) throw UserError("the file is not named", "/save", "write /save FILE");
    if (conversation_.empty()) throw UserError("there is no conversation to save", "/save", "ask something first");
    const Json row = {{"messages", conversation_.messages()}};
    append_output(path, row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n",
                  output_rule(inputs_of(options_), false, begins_with_row));
    note(fmt::format("added to {}", path));
  }

  void answer(const std::string& message) {
    conversation_.add("user", message);
    try {
      request_.prompts = {prompt()};
      const GeneratedSequence sequence = generate();
      conversation_.add("assistant", model_.tokenizer().decode(sequence.answer(), true));
      if (sequence.finish == FinishReason::kLength) note("(stopped at the limit of tokens)");
      if (sequence.finish == FinishReason::kStopped) note("(stopped)");
    } catch (...) {
      conversation_.undo();  // remove the unanswered message
      throw;
    }
  }

  std::vector<int32_t> prompt() const {
    ChatInput input;
    input.messages = conversation_.messages();
    input.variables = model_.template_variables();
    std::vector<int32_t> ids = model_.chat().encode(std::move(input), "the conversation");
    if (static_cast<int64_t>(ids.size()) >= max_length_) {
      throw UserError(fmt::format("the conversation has {} tokens, and there is room for {}", ids.size(), max_length_),
                      "the conversation",
                      "/undo or /reset makes room; --max-length gives more, up to the model's context");
    }
    return ids;
  }

  GeneratedSequence generate() {
    StreamDecoder decoder(model_.tokenizer(), true);
    request_.on_token = [&](size_t, int32_t id) {
      if (!model_.is_stop(id)) print_text(decoder.push(id));
    };
    CtrlC::take();
    GeneratedSequence sequence = std::move(generator_->generate(request_).front());
    print_text(decoder.finish() + "\n");
    CtrlC::take();
    return sequence;
  }

  const ChatOptions& options_;
  const Terminal terminal_ = Terminal::of(2);
  InferenceModel model_;
  ChatSession conversation_;
  bool interactive_;
  LineReader reader_;
  int64_t max_length_ = 0;
  Generator* generator_ = nullptr;
  GenerationRequest request_;
  bool ended_ = false;
};

}  // namespace

int run_chat(const ChatOptions& options) {
  ChatRun(options).run();
  return 0;
}

}  // namespace hone
