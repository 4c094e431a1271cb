#include "app/chat/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "app/chat/chat_model_testing.h"
#include "app/generate/generate.h"
#include "core/base/error.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Chat : public testing::Test {
 protected:
  Chat()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("hone_chat_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    write_chat_model(folder_ / "model");
  }
  ~Chat() override { fs::remove_all(folder_); }

  ChatOptions options() const {
    ChatOptions result;
    result.model = (folder_ / "model").string();
    result.threads = 2;
    result.sampling.max_new_tokens = 8;
    return result;
  }

  /// The output of a chat for lines from a pipe.
  static std::string say(ChatOptions options, const std::string& lines) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(write(ends[1], lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
    close(ends[1]);
    options.input = ends[0];
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    std::string out;
    try {
      EXPECT_EQ(run_chat(options), 0);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      testing::internal::GetCapturedStderr();
      close(ends[0]);
      throw;
    }
    testing::internal::GetCapturedStderr();
    out = testing::internal::GetCapturedStdout();
    close(ends[0]);
    return out;
  }
  static std::string problem(const ChatOptions& options, const std::string& lines) {
    try {
      say(options, lines);
    } catch (const UserError& error) {
      return error.message();
    }
    return "none";
  }

  /// The rows written by /save.
  std::vector<Json> saved() const {
    std::ifstream file(folder_ / "saved.jsonl");
    std::vector<Json> rows;
    for (std::string line; std::getline(file, line);) rows.push_back(Json::parse(line));
    return rows;
  }
  std::string save() const { return "/save " + (folder_ / "saved.jsonl").string() + "\n"; }

  fs::path folder_;
};

TEST_F(Chat, AnswersAsGenerateDoesWithTheWholeConversation) {
  say(options(), "hello\nand you?\n" + save());
  ASSERT_EQ(saved().size(), 1u);
  const Json messages = saved()[0]["messages"];
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[2], (Json{{"role", "user"}, {"content", "and you?"}}));
  // The whole conversation at once, without the cache of the first turn.
  GenerateOptions whole;
  whole.model = options().model;
  whole.threads = 2;
  whole.sampling.max_new_tokens = 8;
  whole.input = (folder_ / "in.jsonl").string();
  whole.output = (folder_ / "out.jsonl").string();
  std::ofstream(whole.input) << saved()[0].dump() << "\n";
  ASSERT_EQ(run_generate(whole), 0);
  std::ifstream file(whole.output);
  EXPECT_EQ(Json::parse(file)["generated_text"], messages[3]["content"]);
}

TEST_F(Chat, StreamsItsAnswersToStandardOutput) {
  const std::string out = say(options(), "hello");  // the last line may lack its end
  const std::string with_save = say(options(), "hello\n" + save());
  EXPECT_EQ(out, saved()[0]["messages"][1]["content"].get<std::string>() + "\n");
  EXPECT_EQ(out, with_save);
}

TEST_F(Chat, CommandsChangeTheConversation) {
  ChatOptions with_system = options();
  with_system.system = "be short";
  say(with_system, "one\ntwo\n/undo\n" + save() + "/reset\nthree\n/system be long\n" + save() + "/system\n//x\\\ny\n" +
                       save() + "/help\n/exit\nnever asked\n");
  const std::vector<Json> rows = saved();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["messages"].size(), 3u);
  EXPECT_EQ(rows[0]["messages"][0], (Json{{"role", "system"}, {"content", "be short"}}));
  EXPECT_EQ(rows[0]["messages"][1]["content"], "one");
  EXPECT_EQ(rows[1]["messages"][0]["content"], "be long");
  EXPECT_EQ(rows[1]["messages"][1]["content"], "three");
  ASSERT_EQ(rows[2]["messages"].size(), 4u);
  EXPECT_EQ(rows[2]["messages"][2]["content"], "/x\ny");
}

TEST_F(Chat, UndoneTurnsLeaveNoTrace) {
  say(options(), "one\n/undo\ntwo\n" + save());
  say(options(), "two\n" + save());
  EXPECT_EQ(saved()[0], saved()[1]);
}

TEST_F(Chat, SaysWhatIsWrong) {
  EXPECT_EQ(problem(options(), "/sav x\n"), "'/sav' is not a command. Did you mean 'save'?");
  EXPECT_EQ(problem(options(), "/save x\n"), "there is no conversation to save");
  EXPECT_EQ(problem(options(), "a\n/save\n"), "the file is not named");
  EXPECT_EQ(problem(options(), "a\n/save /nowhere/at/all\n"), "the file cannot be written: No such file or directory");
  EXPECT_EQ(problem(options(), std::string(600, 'x') + "\n"),
            "the conversation has 602 tokens, and there is room for 512");
  ChatOptions small = options();
  small.max_length = 20;
  EXPECT_THAT(problem(small, "0123456789012345678\n"), HasSubstr("room for 20"));
  EXPECT_EQ(problem(options(), "\n   \n"), "none");
  fs::remove(folder_ / "model/chat_template.jinja");
  EXPECT_EQ(problem(options(), "a\n"), "the model has no chat template, which a conversation needs");
}

/// A chat in its own process, with its own terminal.
class TerminalChat {
 public:
  explicit TerminalChat(const ChatOptions& options) {
    id_ = forkpty(&master_, nullptr, nullptr, nullptr);
    if (id_ != 0) return;
    int code = 1;
    try {
      code = run_chat(options);
    } catch (...) {
    }
    _exit(code);
  }
  ~TerminalChat() {
    if (id_ > 0 && !ended_) kill(id_, SIGKILL), waitpid(id_, nullptr, 0);
    close(master_);
  }

  void type(const std::string& text) const {
    EXPECT_EQ(write(master_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// Reads output until `text` appears; false if the chat ends or is silent before.
  bool shows(const std::string& text) {
    while (seen_.find(text) == std::string::npos) {
      pollfd waiting{master_, POLLIN, 0};
      char bytes[4096];
      if (poll(&waiting, 1, 30000) <= 0) return false;
      const ssize_t got = read(master_, bytes, sizeof bytes);
      if (got <= 0) return false;
      seen_.append(bytes, static_cast<size_t>(got));
    }
    seen_.erase(0, seen_.find(text) + text.size());
    return true;
  }
  /// Waits for further output.
  bool shows_more() {
    if (!seen_.empty()) return true;
    pollfd waiting{master_, POLLIN, 0};
    return poll(&waiting, 1, 30000) > 0;
  }
  int exit_code() {
    int status = 0;
    waitpid(id_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int master_ = -1, id_ = -1;
  bool ended_ = false;
  std::string seen_;
};

TEST_F(Chat, CtrlCStopsAnAnswerAndNotTheProgram) {
  // A long context and no stop tokens: the answer takes seconds.
  std::ifstream file(folder_ / "model/config.json");
  Json config = Json::parse(file);
  config["max_position_embeddings"] = 60000;
  std::ofstream(folder_ / "model/config.json") << config.dump();
  for (const char* name : {"tokenizer_config.json", "generation_config.json"}) {
    std::ofstream(folder_ / "model" / name) << "{}";
  }
  ChatOptions endless = options();
  endless.sampling.max_new_tokens = 100000;
  endless.max_length = 20000;
  TerminalChat chat(endless);
  ASSERT_TRUE(chat.shows("> "));
  chat.type("hello\n");
  ASSERT_TRUE(chat.shows("hello\r\n"));  // the terminal's echo
  ASSERT_TRUE(chat.shows_more());        // an answer has begun: Ctrl-C before that would discard the typed line
  chat.type("\x03");
  ASSERT_TRUE(chat.shows("(stopped)"));
  ASSERT_TRUE(chat.shows("> "));
  chat.type("half of a line\x03");
  ASSERT_TRUE(chat.shows("Ctrl-D ends the conversation"));
  chat.type("/bad\n");
  ASSERT_TRUE(chat.shows("is not a command"));
  chat.type("/undo\n");
  ASSERT_TRUE(chat.shows("are gone"));
  chat.type("/exit\n");
  EXPECT_EQ(chat.exit_code(), 0);
}

TEST(LineReader, GivesLinesWhateverTheirEnds) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string text = "a\r\n\nlast";
  ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(ends[1]);
  LineReader reader(ends[0]);
  std::string line;
  for (const char* expected : {"a", "", "last"}) {
    ASSERT_EQ(reader.next(line), LineReader::Event::kLine);
    EXPECT_EQ(line, expected);
  }
  EXPECT_EQ(reader.next(line), LineReader::Event::kEnd);
  close(ends[0]);
}

TEST(LineReader, CtrlCDropsWhatWasTyped) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const CtrlC ctrl_c;
  LineReader reader(ends[0]);
  std::string line;
  ASSERT_EQ(write(ends[1], "half", 4), 4);
  std::thread presses([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    raise(SIGINT);
  });
  EXPECT_EQ(reader.next(line), LineReader::Event::kCtrlC);
  presses.join();
  ASSERT_EQ(write(ends[1], "whole\n", 6), 6);
  ASSERT_EQ(reader.next(line), LineReader::Event::kLine);
  EXPECT_EQ(line, "whole");
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace hone
