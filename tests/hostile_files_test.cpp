// Tests of malicious and randomly damaged files through the verbs that read them: the program must answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "app/chat/chat_model_testing.h"
#include "core/base/philox.h"
#include "program.h"

extern char** environ;

namespace hone {
namespace {

/// The result of a run with limits on time and memory.
struct BoundedRun {
  int code = -1;      ///< exit code; 128 + signal
  bool hung = false;  ///< killed at the time limit
  double seconds = 0;
  int64_t peak_bytes = 0;  ///< resident
  std::string out;         ///< standard output and error

  /// Whether the program answered: no signal, no hang, no internal error, at most 1.2 GB, and no control sequences from
  /// a file in its output.
  testing::AssertionResult answered() const;
};

testing::AssertionResult BoundedRun::answered() const {
  constexpr int64_t kMostBytes = 1'200'000'000;
  const auto failure = [&](const std::string& what) {
    return testing::AssertionFailure() << what << " after " << seconds << " s, " << (peak_bytes >> 20) << " MB\n"
                                       << out.substr(0, 2000);
  };
  if (hung) return failure("it hangs");
  if (code >= 128 || code < 0) return failure("signal " + std::to_string(code - 128));
  if (code == 4) return failure("the machine failed");
  if (out.find("internal error") != std::string::npos || out.find("terminate called") != std::string::npos) {
    return failure("an error of its own");
  }
  if (code != 0 && out.empty()) return failure("no word");
  if (peak_bytes > kMostBytes) return failure("too much memory");
  if (out.find('\x1b') != std::string::npos) return failure("control sequences");
  return testing::AssertionSuccess();
}

/// Runs hone with at most 6 GB of address space and 30 s (an answer takes 10 s at most; a busy machine takes longer).
BoundedRun run_bounded(const std::vector<std::string>& arguments) {
  constexpr auto kMostTime = std::chrono::seconds(30);
  const Folder folder;
  const std::string output = (folder / "out").string();
  std::vector<std::string> words = {"sh", "-c", "ulimit -v 6000000; exec \"$@\"", "sh", hone_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  BoundedRun run;
  pid_t id = -1;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(posix_spawn(&id, "/bin/sh", &files, nullptr, pointers.data(), environ), 0);
  posix_spawn_file_actions_destroy(&files);
  int status = 0;
  rusage usage{};
  while (wait4(id, &status, WNOHANG, &usage) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (std::chrono::steady_clock::now() - begin < kMostTime) continue;
    run.hung = true;
    kill(id, SIGKILL);
    wait4(id, &status, 0, &usage);
    break;
  }
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.peak_bytes = int64_t{usage.ru_maxrss} << 10;
  run.out = read_file(output);
  return run;
}

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A model with a tokenizer, an adapter, data and a checkpoint, made once and copied for each test.
class HostileFiles : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Folder& folder = base();
    folder.write("tokenizer/tokenizer.json", byte_tokenizer().dump());
    folder.write("tokenizer/tokenizer_config.json",
                 Json{{"eos_token", "<|end|>"}, {"chat_template", kChatModelTemplate}}.dump());
    Json config = tiny_config();
    config["vocab_size"] = 264;
    const std::string model = make_model(folder, config, (folder / "tokenizer").string());
    folder.write("model/generation_config.json", R"({"eos_token_id": 0, "do_sample": false, "max_new_tokens": 2})");
    std::string chat;
    for (int i = 0; i < 8; ++i) {
      chat += Json{{"messages",
                    {{{"role", "user"}, {"content", "hello " + std::to_string(i)}},
                     {{"role", "assistant"}, {"content", "he ä"}}}}}
                  .dump() +
              "\n";
    }
    const std::string data = folder.write("chat.jsonl", chat);
    folder.write("table.csv", "instruction,output\n\"say 1\",\"he, 1\"\nsay,he\n");
    folder.write("array.json", R"([{"text": "hello"}, {"text": "more"}])");
    const Outcome outcome = run_hone(train_arguments(
        model, data, folder / "lora", {"max_steps=1", "max_length=64", "lora_r=4", "lora_target_modules=[attention]"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  static void TearDownTestSuite() { made().reset(); }

  HostileFiles() { start_over(); }

  void start_over() {
    case_ = std::make_unique<Folder>();
    fs::copy(base() / "", *case_ / "", fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }

  fs::path at(const std::string& name) const { return *case_ / name; }
  void replace_by_link(const std::string& name, const std::string& target) const {
    fs::remove(at(name));
    fs::create_symlink(target, at(name));
  }
  void replace_by_pipe(const std::string& name) const {
    fs::remove(at(name));
    ASSERT_EQ(mkfifo(at(name).c_str(), 0644), 0);
  }
  void change(const std::string& name, const std::function<void(Json&)>& edit) const {
    Json json = Json::parse(read_file(at(name)));
    edit(json);
    case_->write(name, json.dump());
  }
  std::vector<std::string> inspect() const { return {"inspect", at("model").string()}; }
  std::vector<std::string> generate(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"generate",         "--model", at("model").string(), "--prompt", "hello",
                                      "--max-new-tokens", "2",       "--threads",          "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<std::string> with_adapter() const { return generate({"--adapter", at("lora").string()}); }
  std::vector<std::string> train(const std::string& data = "chat.jsonl",
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = train_arguments(at("model").string(), at(data).string(), at("out"),
                                                     {"max_steps=1", "max_length=64", "save_strategy=no"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// Checks that the program refuses the input quickly, with `words` in its message.
  void refused(const std::vector<std::string>& arguments, const std::string& words) const {
    const BoundedRun run = run_bounded(arguments);
    EXPECT_TRUE(run.answered()) << words;
    EXPECT_EQ(run.code, 2) << words << "\n" << run.out;
    EXPECT_THAT(run.out, HasSubstr(words));
  }

  std::unique_ptr<Folder> case_;

 private:
  static std::unique_ptr<Folder>& made() {
    static std::unique_ptr<Folder> folder;
    if (!folder) folder = std::make_unique<Folder>();
    return folder;
  }
  static const Folder& base() { return *made(); }
};

TEST_F(HostileFiles, PipesAndDevicesInAModelAreRefusedWithoutWaiting) {
  for (const std::string name :
       {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    replace_by_pipe("model/" + name);
    refused(generate(), "a pipe, not a regular file");
    replace_by_link("model/" + name, "/dev/zero");
    refused(generate(), "a device, not a regular file");
    start_over();
  }
  fs::create_symlink("/dev/zero", at("model/chat_template.jinja"));
  refused(generate(), "a device");
  fs::remove(at("model/chat_template.jinja"));
  fs::create_symlink("/dev/zero", at("model/model.safetensors.index.json"));
  refused(inspect(), "a device");
  start_over();
  for (const std::string name : {"lora/adapter_config.json", "lora/adapter_model.safetensors"}) {
    replace_by_link(name, "/dev/zero");
    refused(with_adapter(), "a device");
    replace_by_pipe(name);
    refused(with_adapter(), "a pipe");
    start_over();
  }
}

TEST_F(HostileFiles, DataAreRegularFiles) {
  for (const std::string name : {"p.jsonl", "p.json", "p.csv", "p.txt"}) {
    ASSERT_EQ(mkfifo(at(name).c_str(), 0644), 0);
    refused(train(name), "a pipe");
    replace_by_link(name, "/dev/zero");
    refused(train(name), "a device");
  }
}

TEST_F(HostileFiles, AConfigurationAndPromptsMayBePiped) {
  ASSERT_EQ(mkfifo(at("run.yaml").c_str(), 0644), 0);
  refused({"validate", at("run.yaml").string()}, "nobody writes to this pipe");
  const auto piped = [&](const std::string& name, const std::string& text, const std::vector<std::string>& arguments) {
    std::thread writer([&] { std::ofstream(at(name)) << text; });
    const BoundedRun run = run_bounded(arguments);
    writer.join();
    EXPECT_TRUE(run.answered());
    return run;
  };
  const std::string config = "model_name_or_path: " + at("model").string() +
                             "\ndatasets: " + at("chat.jsonl").string() + "\noutput_dir: " + at("out").string() + "\n";
  const BoundedRun valid = piped("run.yaml", config, {"validate", at("run.yaml").string()});
  EXPECT_EQ(valid.code, 0) << valid.out;
  ASSERT_EQ(mkfifo(at("prompts").c_str(), 0644), 0);
  const BoundedRun answers = piped("prompts", "{\"prompt\": \"he\"}\n{\"prompt\": \"she\"}\n",
                                   {"generate", "--model", at("model").string(), "--input", at("prompts").string(),
                                    "--output", "-", "--threads", "1", "--max-new-tokens", "2"});
  EXPECT_EQ(answers.code, 0) << answers.out;
  EXPECT_THAT(answers.out, HasSubstr("\"prompt\":\"she\""));
}

TEST_F(HostileFiles, NumbersOfAConfigAreBounded) {
  const auto with = [&](const char* key, const Json& value) {
    change("model/config.json", [&](Json& json) { json[key] = value; });
  };
  for (const int64_t many : {int64_t{1} << 24, int64_t{1} << 40}) {
    with("num_experts", many);
    refused(inspect(), "num_experts");
  }
  start_over();
  with("max_position_embeddings", 0);
  refused(generate(), "max_position_embeddings");
  start_over();
  Json huge = tiny_config();
  huge["vocab_size"] = int64_t{1} << 33;
  refused({"init", "--new-model", case_->write("huge.json", huge.dump()), at("made").string()}, "of weights");
  refused(train("chat.jsonl", {"threads=1000000"}), "threads");
  refused(train("chat.jsonl", {"max_length=1099511627776"}), "max_length");
  refused(generate({"--threads", "1000000"}), "threads");
}

TEST_F(HostileFiles, AdaptersAskForNoMoreThanTheirFilesHave) {
  const auto refuse = [&](const char* key, const Json& value, const std::string& words) {
    change("lora/adapter_config.json", [&](Json& json) { json[key] = value; });
    refused(with_adapter(), words);
    start_over();
  };
  refuse("r", 1 << 20, "its files have 4 at most");
  refuse("rank_pattern", {{"q_proj", 1 << 20}}, "its files have 4 at most");
  refuse("lora_dropout", 5, "lora_dropout");
  refuse("lora_dropout", -0.5, "lora_dropout");
  refuse("rank_pattern", {{std::string(50'000, '(') + std::string(9'000, ')'), 4}}, "not a regular expression");
  refuse("rank_pattern", {{"(([a-z._0-9]+)+)+[!?]", 4}}, "cannot be matched");
  refused(train("chat.jsonl", {"lora_r=4", "lora_target_modules=['re:" + std::string(30'000, '(') + "']"}),
          "not a regular expression");
  refused(train("chat.jsonl", {"freeze_parameters=['re:(([a-z._0-9]+)+)+[!?]']"}), "cannot be matched");
  // Files of other tools are read: one pattern per module.
  change("lora/adapter_config.json", [&](Json& json) {
    json["rank_pattern"] = Json::object();
    for (int i = 0; i < 10'000; ++i) {
      json["rank_pattern"]["model.layers." + std::to_string(i) + ".self_attn.k_proj"] = 4;
    }
    json["alpha_pattern"] = {{std::string(16'000, 'a'), 4}};
  });
  EXPECT_EQ(run_bounded(with_adapter()).code, 0);
}

TEST_F(HostileFiles, ControlCharactersOfNamesAreShownAndNotSent) {
  const std::string header =
      R"({"\u001b[2J\u001b]0;title\u0007\u202e":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  case_->write("model/model.safetensors", file + header);
  refused({"inspect", at("model").string(), "--tensors"}, "lacks");
  case_->write("lora/adapter_model.safetensors", file + header);
  const BoundedRun shown = run_bounded({"inspect", at("lora").string(), "--tensors"});
  EXPECT_TRUE(shown.answered());
  EXPECT_THAT(shown.out, HasSubstr("\\x1b[2J\\x1b]0;title\\x07\\u202e"));
}

TEST_F(HostileFiles, ASlashAtTheEndOfAPathChangesNothing) {
  const std::string model = at("model").string() + "/", adapter = at("lora").string() + "/";
  EXPECT_EQ(run_bounded({"inspect", model}).code, 0);
  EXPECT_EQ(run_bounded({"inspect", adapter}).code, 0);
  EXPECT_EQ(run_bounded({"generate", "--model", model, "--adapter", adapter, "--prompt", "a", "--threads", "1"}).code,
            0);
  fs::create_directory(at("data"));
  fs::copy(at("chat.jsonl"), at("data/chat.jsonl"));
  std::vector<std::string> words = train("data");
  words[1] += "/";
  words[2] += "/";
  const BoundedRun run = run_bounded(words);
  EXPECT_EQ(run.code, 0) << run.out;
}

/// Changes files at random.
class Damage {
 public:
  explicit Damage(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t count) { return random_.below(count); }

  /// Damages a file; returns a description.
  std::string apply(const fs::path& path) {
    const std::string raw = read_file(path);
    switch (below(16)) {
      case 0:
        return std::ofstream(path, std::ios::trunc), "emptied";
      case 1:
        return fs::remove(path), fs::create_directory(path), "made a folder";
      case 2:
        return fs::remove(path), fs::create_symlink(path, path), "made a link to itself";
      case 3:
        return fs::remove(path), fs::create_symlink("/dev/null", path), "made a device";
      default:
        break;
    }
    const bool lines = path.extension() == ".jsonl", json = path.extension() == ".json";
    if ((json || lines) && below(4) > 0) {
      write(path, lines ? with_bad_line(raw) : with_bad_value(raw));
      return "given other values";
    }
    if (path.extension() == ".safetensors" && below(4) > 0) {
      uint64_t header_bytes = 0;
      std::memcpy(&header_bytes, raw.data(), 8);
      const std::string header = with_bad_value(raw.substr(8, header_bytes));
      uint64_t size = below(8) == 0 ? below(3) * 99'999'999 : header.size();
      std::string bytes(8, '\0');
      std::memcpy(bytes.data(), &size, 8);
      write(path, bytes + header + raw.substr(8 + header_bytes));
      return "given another header";
    }
    write(path, with_bad_bytes(raw));
    return "given other bytes";
  }

 private:
  static void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  std::string with_bad_value(const std::string& text) {
    static const std::vector<Json> kValues = {nullptr,
                                              true,
                                              -1,
                                              0,
                                              1,
                                              int64_t{1} << 31,
                                              int64_t{1} << 40,
                                              INT64_MAX,
                                              INT64_MIN,
                                              UINT64_MAX,
                                              1e308,
                                              1e-320,
                                              0.5,
                                              "",
                                              "x",
                                              std::string(1, '\0'),
                                              std::string(5000, 'x'),
                                              "../../../etc/passwd",
                                              "/dev/zero",
                                              Json::array(),
                                              Json::object(),
                                              Json::array({Json::array()}),
                                              "((((",
                                              "re:(a*)*b",
                                              "{{ x }}",
                                              "\u202e",
                                              "nan",
                                              "%s%n"};
    Json json = Json::parse(text);
    for (uint64_t changes = 1 + below(3); changes > 0; --changes) {
      Json* node = &json;
      while (node->is_structured() && !node->empty() && (node == &json || below(4) > 0)) {
        node = &*std::next(node->begin(), static_cast<std::ptrdiff_t>(below(node->size())));
      }
      if (node->is_number() && below(3) == 0) {
        *node = node->get<double>() * (below(2) == 0 ? -1 : 1e6);
      } else {
        *node = kValues[below(kValues.size())];
      }
    }
    return json.dump();
  }

  std::string with_bad_line(const std::string& text) {
    const size_t end = text.find('\n');
    return with_bad_value(text.substr(0, end)) + text.substr(end);
  }

  std::string with_bad_bytes(std::string text) {
    static const std::string kInserts[] = {
        "\xef\xbb\xbf", "\r\n", std::string(50, '\0'), std::string(3000, '['), "\"", "{{", "{%",
        "1e999",        "\xff", "\xed\xa0\x80"};
    for (uint64_t changes = 1 + below(4); changes > 0 && !text.empty(); --changes) {
      const size_t place = below(text.size());
      switch (below(5)) {
        case 0:
          text[place] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(place, 1 + below(40));
          break;
        case 2:
          text.insert(place, text.substr(place / 2, 1 + below(60)));
          break;
        case 3:
          text.resize(place);
          break;
        default:
          text.insert(place, kInserts[below(std::size(kInserts))]);
      }
    }
    return text;
  }

  PhiloxSequence random_;
};

/// For more and other files: --gtest_filter=*DamagedAtRandom --gtest_shuffle --gtest_random_seed=7 --gtest_repeat=100
TEST_F(HostileFiles, FilesDamagedAtRandomAreAnswered) {
  const auto seed = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  RecordProperty("seed", static_cast<int>(seed));
  Damage damage(seed);
  const auto yaml = [&] {
    case_->write("run.yaml", "model_name_or_path: " + at("model").string() +
                                 "\ndatasets:\n  - path: " + at("chat.jsonl").string() +
                                 "\nmax_length: 64\nlora: {r: 4, target_modules: [attention]}\n" +
                                 "output_dir: " + at("out").string() + "\n");
    return std::vector<std::string>{"validate", at("run.yaml").string()};
  };
  const std::vector<std::pair<std::string, std::function<std::vector<std::string>()>>> targets = {
      {"model/config.json", [&] { return generate(); }},
      {"model/config.json", [&] { return inspect(); }},
      {"model/model.safetensors", [&] { return generate(); }},
      {"model/tokenizer.json", [&] { return generate(); }},
      {"model/tokenizer_config.json", [&] { return generate(); }},
      {"model/generation_config.json", [&] { return generate(); }},
      {"lora/adapter_config.json", [&] { return with_adapter(); }},
      {"lora/adapter_model.safetensors", [&] { return with_adapter(); }},
      {"chat.jsonl", [&] { return train("chat.jsonl", {"--dry-run"}); }},
      {"table.csv", [&] { return train("table.csv", {"--dry-run"}); }},
      {"array.json", [&] { return train("array.json", {"--dry-run"}); }},
      {"run.yaml", yaml},
  };
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& [name, arguments] : targets) {
      start_over();
      const std::vector<std::string> words = arguments();
      const std::string how = damage.apply(at(name));
      EXPECT_TRUE(run_bounded(words).answered())
          << name << " was " << how << ", round " << round << " of seed " << seed;
    }
  }
}

}  // namespace
}  // namespace hone
