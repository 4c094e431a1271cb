// What the program writes: every option that names an output is aimed at files that must stay, and every verb that
// prints at a standard output that fails. The options are those of the command line itself, so none is forgotten.
#include <gmock/gmock.h>
#include <CLI/CLI.hpp>

#include <functional>
#include <map>
#include <regex>
#include <set>

#include "app/chat/chat_model_testing.h"
#include "app/cli.h"
#include "program.h"
#include "shell.h"

namespace hone {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

/// Calls `visit` with the full name and the verb, subcommands included: "bench step".
void each_verb(const CLI::App& app, const std::string& before,
               const std::function<void(const std::string&, const CLI::App&)>& visit) {
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = before + verb->get_name();
    visit(name, *verb);
    each_verb(*verb, name + " ", visit);
  }
}

/// A verb that writes, aimed at `target`.
struct Writer {
  std::function<Words(const std::string& target)> words;
  std::string file = {};  ///< where the option names a folder: a file that is written there
  Words inputs = {};      ///< files that are read, which it must not replace
  bool has_force = true;
  bool goes_elsewhere = false;  ///< instead of refusing, it chooses another name
};

class Writes : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    files_ = new Folder;
    write_chat_model(*files_ / "model");
    std::string chats;
    for (const char* word : {"a", "b", "c", "d"}) {
      chats += Json{{"messages", {{{"role", "user"}, {"content", word}}, {{"role", "assistant"}, {"content", word}}}}}
                   .dump() +
               "\n";
    }
    files_->write("chat.jsonl", chats);
    files_->write("rows.csv", "prompt,response\nq,a\nr,b\n");
    files_->write("prompts.jsonl", "{\"prompt\":\"a\"}\n");
    std::string source = "def total(values):\n    \"\"\"The sum of all values, one after another.\"\"\"\n    sum = 0\n";
    for (int i = 0; i < 12; ++i)
      source += "    for value in values:\n        sum += value * " + std::to_string(i) + "\n";
    files_->write("src/a.py", source + "    return sum\n");
    files_->write("axolotl.yaml", "base_model: x\ndatasets:\n  - path: y\n    type: alpaca\nmicro_batch_size: 1\n");
    files_->write("adapter/adapter_config.json", Json{{"base_model_name_or_path", path("model")}}.dump());
    files_->write("grid.yaml", "include:\n  - {model: " + path("model") + ", mode: lora}\n");
    files_->write("text.txt", "some words\n");
    files_->write("sweep.yaml", "keys: {model_name_or_path: " + path("model") + ", datasets: " + path("chat.jsonl") +
                                    ", max_length: 32, max_steps: 1, threads: 1, device: cpu}\nruns: [{seed: 1}]\n");
    files_->write("run/metrics.jsonl", "{\"step\":1,\"loss\":2.5}\n");
    fs::copy(kChatModelCase / "model", *files_ / "plain");
  }
  static void TearDownTestSuite() { delete std::exchange(files_, nullptr); }

  static std::string path(const std::string& name) { return (*files_ / name).string(); }

  static Words step(const char* option, const std::string& target) {
    return {"bench",   "step", "--model",  path("model"), "--device", "cpu", "--seq", "8",
            "--batch", "1",    "--warmup", "1",           "--steps",  "1",   option,  target};
  }

  /// By the name of the option.
  static std::map<std::string, Writer> writers() {
    const auto evaluate = [](const std::string& target) {
      return Words{"eval",
                   "model_name_or_path=" + path("model"),
                   "datasets=" + path("chat.jsonl"),
                   "eval_datasets=" + path("chat.jsonl"),
                   "max_length=64",
                   "threads=1",
                   "device=cpu",
                   "--output",
                   target};
    };
    return {
        {"init --output",
         {[](auto& t) { return Words{"init", path("model"), "--data", path("chat.jsonl"), "--output", t}; },
          "",
          {"chat.jsonl", "model/config.json"}}},
        {"convert-config --output",
         {[](auto& t) {
            return Words{"convert-config", path("axolotl.yaml"), "--accept-changes", "--output", t};
          },
          "",
          {"axolotl.yaml"}}},
        {"prepare --output",
         {[](auto& t) { return Words{"prepare", "datasets=" + path("rows.csv"), "--split-nodes", "2", "--output", t}; },
          "training_data_node_1.csv"}},
        {"eval --output",
         {evaluate, "", {"chat.jsonl", "model/config.json", "model/model-00001-of-00006.safetensors"}}},
        {"report --output",
         {[](auto& t) {
            return Words{"report", path("run"), "--output", t};
          },
          "",
          {"run/metrics.jsonl"}}},
        {"compare --output",
         {[](auto& t) {
            return Words{"compare", path("run"), path("run"), "--output", t};
          },
          "",
          {"run/metrics.jsonl"}}},
        {"sweep --output",
         {[](auto& t) {
            return Words{"sweep", path("sweep.yaml"), "--output", t};
          },
          "sweep.json"}},
        {"eval --predictions",
         {[](auto& t) {
            return Words{"eval",          "model_name_or_path=" + path("model"),
                         "--task",        path("chat.jsonl"),
                         "max_length=64", "threads=1",
                         "device=cpu",    "max_new_tokens=1",
                         "--predictions", t};
          },
          "",
          {"chat.jsonl", "model/config.json"}}},
        {"generate --output",
         {[](auto& t) {
            return Words{
                "generate",  "--model", path("model"), "--input", path("prompts.jsonl"), "--max-new-tokens", "1",
                "--threads", "1",       "--output",    t};
          },
          "",
          {"prompts.jsonl", "model/config.json"}}},
        {"merge --output",
         {[](auto& t) { return Words{"merge", "--model", path("model"), "--adapter", path("adapter"), "--output", t}; },
          "notes.txt"}},
        {"export OUTPUT",
         {[](auto& t) {
            return Words{"export", path("model"), t};
          },
          "notes.txt"}},
        {"convert OUTPUT",
         {[](auto& t) {
            return Words{"convert", path("adapter"), t, "--to", "sglang"};
          },
          "notes.txt"}},
        {"launch --script", {[](auto& t) {
           return Words{"launch", "--slurm", "--nodes", "1", "-n", "1", "--script", t, "--", "train", "x.yaml"};
         }}},
        {"launch --logs",
         {[](auto& t) {
            return Words{"launch", "--hosts", "localhost", "--ssh", "false", "--independent", "1",
                         "-n",     "1",       "--logs",    t,       "--",    "train",         "x.yaml"};
          },
          "node_0.log",
          {},
          false,
          true}},
        {"bench step --json", {[](auto& t) { return step("--json", t); }, "", {"model/config.json"}}},
        {"bench step --profile", {[](auto& t) { return step("--profile", t); }, "", {"model/config.json"}}},
        {"bench grid --output",
         {[](auto& t) {
            return Words{"bench", "grid", path("grid.yaml"), "--output", t};
          },
          "grid.csv"}},
        {"bench ops --json",
         {[](auto& t) {
            return Words{"bench", "ops", "--device", "cpu", "--model", path("model"),
                         "--op",  "add", "--tokens", "8",   "--json",  t};
          },
          "",
          {"model/config.json"}}},
        {"bench tokenizer --json",
         {[](auto& t) {
            return Words{"bench",          "tokenizer", "--tokenizer", path("model"), "--text",
                         path("text.txt"), "--seconds", "0.01",        "--json",      t};
          },
          "",
          {"text.txt", "model/tokenizer.json"}}},
        {"quickstart --output",
         {[](auto& t) {
            return Words{"quickstart", "--output", t};
          },
          "notes.txt"}},
        // Not options of their own: a second meaning of one, and a second kind of output.
        {"init MODEL",
         {[](auto& t) {
            return Words{"init", "--new-model", path("model/config.json"), t};
          },
          "notes.txt"}},
        {"export OUTPUT as GGUF",
         {[](auto& t) {
            return Words{"export", path("plain"), t, "--format", "gguf"};
          },
          "",
          {"plain/config.json", "plain/model-00001-of-00006.safetensors"}}},
        {"prepare --output of code",
         {[](auto& t) {
            return Words{"prepare", "model_name_or_path=" + path("model"),
                         "datasets=[{path: " + path("src") + ", type: code}]", "--output", t};
          },
          "all_data.jsonl"}},
    };
  }

  /// Names what other programs write: the runs of launch train there, as without it.
  static std::set<std::string> written_by_runs() { return {"launch --models"}; }

  static Outcome run(const Writer& writer, const std::string& target, bool force = false) {
    Words words = writer.words(target);
    if (force) words.insert(words.begin() + (words[0] == "bench" ? 2 : 1), "--force");
    return run_hone(words);
  }

  static void expect_refused(const Writer& writer, const Outcome& outcome) {
    EXPECT_TRUE(outcome.code == 2 || writer.goes_elsewhere) << outcome.code << outcome.out << outcome.err;
  }

  /// Names of files in a folder and the folders in it.
  static std::set<std::string> names_below(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) names.insert(entry.path().string());
    return names;
  }

  static inline Folder* files_ = nullptr;
};

TEST_F(Writes, EveryOptionThatWritesIsTriedHere) {
  CLI::App app("", "hone");
  Action action;
  add_verbs(app, action, {});
  const std::regex writes("to write|(file|folder) for|folder to which");
  const std::map<std::string, Writer> tried = writers();
  std::set<std::string> outputs;
  each_verb(app, "", [&](const std::string& verb, const CLI::App& options) {
    for (const CLI::Option* option : options.get_options()) {
      const std::string name = verb + " " + option->get_name();
      if (is_output(*option)) outputs.insert(name);
      const bool names_output = std::regex_search(option->get_description(), writes) || name.ends_with("-output") ||
                                name.ends_with(" --output");
      if (name == "prepare --split-nodes") continue;  // a number: --output names what it writes
      EXPECT_TRUE(!names_output || is_output(*option) || tried.contains(name)) << name << ": use add_output";
    }
  });
  EXPECT_GT(outputs.size(), 10u);
  for (const std::string& name : outputs) {
    EXPECT_TRUE(tried.contains(name) || written_by_runs().contains(name)) << name << " is not tried";
  }
}

TEST_F(Writes, AFileOfSomebodyElseStays) {
  for (const auto& [name, writer] : writers()) {
    SCOPED_TRACE(name);
    const Folder folder;
    const fs::path target = folder / "target", file = writer.file.empty() ? target : target / writer.file;
    folder.write(fs::relative(file, folder / "").string(), "mine");
    expect_refused(writer, run(writer, target.string()));
    EXPECT_EQ(read_file(file), "mine");
  }
}

TEST_F(Writes, ALinkIsNotFollowed) {
  for (const auto& [name, writer] : writers()) {
    SCOPED_TRACE(name);
    const Folder folder;
    const fs::path target = folder / "target", file = writer.file.empty() ? target : target / writer.file;
    fs::create_directories(file.parent_path());
    const std::string precious = folder.write("precious.txt", "mine");
    for (const fs::path& aim : {fs::path(precious), folder / "absent"}) {
      fs::create_symlink(aim, file);
      expect_refused(writer, run(writer, target.string()));
      EXPECT_TRUE(fs::is_symlink(file));
      fs::remove(file);
    }
    EXPECT_EQ(read_file(precious), "mine");
    EXPECT_FALSE(fs::exists(folder / "absent"));
  }
}

TEST_F(Writes, AFolderOrAFileInItsPlaceStays) {
  for (const auto& [name, writer] : writers()) {
    SCOPED_TRACE(name);
    const Folder folder;
    const std::string target = (folder / "target").string();
    if (writer.file.empty()) {
      folder.write("target/mine.txt", "mine");
      EXPECT_EQ(run(writer, target, writer.has_force).code, 2);
      EXPECT_EQ(read_file(target + "/mine.txt"), "mine");
    } else {
      folder.write("target", "mine");
      EXPECT_NE(run(writer, target, writer.has_force && name != "quickstart --output").code, 0);
      EXPECT_EQ(read_file(target), "mine");
    }
  }
}

TEST_F(Writes, AnInputStaysEvenWithForce) {
  for (const auto& [name, writer] : writers()) {
    for (const std::string& input : writer.inputs) {
      SCOPED_TRACE(name + ": " + input);
      const Folder folder;
      const std::string before = read_file(path(input));
      fs::create_hard_link(path(input), folder / "hard");
      for (const std::string& target : {path(input), (folder / "hard").string()}) {
        const Outcome outcome = run(writer, target, writer.has_force);
        EXPECT_EQ(outcome.code, 2) << outcome.err;
        EXPECT_THAT(outcome.err, HasSubstr("would be written over"));
        EXPECT_EQ(read_file(path(input)), before);
      }
    }
  }
}

TEST_F(Writes, ADeviceStays) {
  for (const auto& [name, writer] : writers()) {
    if (!writer.file.empty()) continue;
    SCOPED_TRACE(name);
    EXPECT_EQ(run(writer, "/dev/full", writer.has_force).code, 2);
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
  }
}

TEST_F(Writes, AFullDiskIsAnErrorThatLeavesNothing) {
  const Folder folder;
  const SmallDisk disk(folder / "disk", "size=64k");
  if (!disk.why_not().empty()) GTEST_SKIP() << disk.why_not();
  disk.fill(0);
  const std::set<std::string> before = names_below(folder / "disk");
  for (const auto& [name, writer] : writers()) {
    if (writer.goes_elsewhere || name == "merge --output" || name == "convert OUTPUT" || name == "bench grid --output")
      continue;  // their inputs here are not complete
    SCOPED_TRACE(name);
    const Outcome outcome = run(writer, (folder / "disk/target").string());
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("No space left"));
    if (name == "quickstart --output" || name == "sweep --output") {  // it has begun its folder
      fs::remove_all(folder / "disk/target");
      continue;
    }
    EXPECT_EQ(names_below(folder / "disk"), before);
  }
}

TEST_F(Writes, AnEarlierResultIsReplacedOrRefused) {
  const Folder folder;
  for (const char* name : {"eval --output", "bench tokenizer --json", "report --output", "compare --output"}) {
    const std::string target = (folder / "result.json").string();
    EXPECT_EQ(run(writers().at(name), target).code, 0);
    EXPECT_EQ(run(writers().at(name), target).code, 0) << name << ": its own";
    fs::remove(target);
  }
  const std::string answers = (folder / "answers.jsonl").string();
  EXPECT_EQ(run(writers().at("generate --output"), answers).code, 0);
  const Outcome again = run(writers().at("generate --output"), answers);
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("--force"));
  EXPECT_EQ(run(writers().at("generate --output"), answers, true).code, 0);
}

TEST_F(Writes, LogsOfAnEarlierLaunchStayBesideThoseOfTheNext) {
  const Folder folder;
  const std::string logs = (folder / "logs").string();
  const Writer launch = writers().at("launch --logs");
  for (int i = 0; i < 2; ++i) run(launch, logs + "/");
  for (const char* name : {"logs", "logs-2"}) EXPECT_TRUE(fs::exists(folder / name / "node_0.log")) << name;
}

TEST_F(Writes, ShardsThatAreKilledOnTheWayLoseNothing) {
  if (run_shell("strace -V").code != 0) GTEST_SKIP() << "no strace";
  for (int when = 1; when <= 3; ++when) {
    const Folder folder;
    folder.write("data/notes.txt", "a\nb\n");  // the folder exists, so files are moved one by one
    folder.write("rows.csv", "prompt,response\nq,a\nr,b\ns,c\nt,d\n");
    const std::string command = hone_program() + " prepare datasets=" + (folder / "rows.csv").string() +
                                " --split-nodes 2 --output " + (folder / "data").string();
    run_shell("strace -f -qq -o /dev/null -e trace=renameat2 -e inject=renameat2:signal=SIGKILL:when=" +
              std::to_string(when) + " " + command);
    EXPECT_EQ(read_file(folder / "rows.csv"), "prompt,response\nq,a\nr,b\ns,c\nt,d\n");
    EXPECT_EQ(read_file(folder / "data/notes.txt"), "a\nb\n");
    EXPECT_EQ(run_shell(command + " --force").code, 0);
    EXPECT_THAT(names_in(folder / "data"),
                testing::ElementsAre("dataset_stats.json", "notes.txt", "training_data_node_0.jsonl",
                                     "training_data_node_1.jsonl"));
  }
}

TEST_F(Writes, ChatSavesToFilesOfRowsOnly) {
  const Folder folder;
  const auto save = [&](const std::string& file) {
    return run_shell("printf 'hello\\n/save " + file + "\\n' | " + hone_program() + " chat --model " + path("model") +
                     " --threads 1 --max-new-tokens 1")
        .code;
  };
  const std::string rows = (folder / "rows.jsonl").string(), notes = folder.write("notes.txt", "mine");
  EXPECT_EQ(save(rows), 0);
  EXPECT_EQ(save(rows), 0);
  EXPECT_EQ(read_json_lines(rows).size(), 2u);
  fs::create_symlink(rows, folder / "link.jsonl");
  const std::string model = path("model/model-00001-of-00006.safetensors"), before = read_file(model);
  for (const std::string& file :
       {notes, model, path("model/new.jsonl"), (folder / "link.jsonl").string(), std::string("/dev/full")}) {
    EXPECT_EQ(save(file), 2) << file;
  }
  EXPECT_EQ(read_file(notes), "mine");
  EXPECT_EQ(read_file(model), before);
  EXPECT_EQ(read_json_lines(rows).size(), 2u);
}

/// Commands whose result is on standard output, by verb.
std::map<std::string, std::string> printing(const std::function<std::string(const std::string&)>& path) {
  const std::string model = path("model"), data = path("chat.jsonl");
  const std::string run = " model_name_or_path=" + model + " datasets=" + data + " max_length=64 threads=1 device=cpu ";
  return {
      {"init", model + " --output -"},
      {"convert-config", path("axolotl.yaml") + " --accept-changes --output -"},
      {"inspect", model + " --tensors"},
      {"estimate", model + " device=cpu --json"},
      {"validate", run + "output_dir=" + path("out")},
      {"prepare", run},
      {"train", run + "--dry-run output_dir=" + path("out")},
      {"eval", run + "eval_datasets=" + data + " --json"},
      {"generate", "--model " + model + " --input " + path("prompts.jsonl") + " --max-new-tokens 1 --threads 1"},
      {"chat", "--model " + model + " --max-new-tokens 1 --threads 1 < " + path("text.txt")},
      {"launch", "--slurm --dry-run --nodes 1 -n 1 -- train x.yaml"},
      {"bench tokenizer", "--tokenizer " + model + " --text " + path("text.txt") + " --seconds 0.01 --json -"},
      {"bench grid", path("grid.yaml") + " --dry-run"},
      {"status", path("run") + " --port 0"},
      {"schema", ""},
      {"models", ""},
      {"env", "--json"},
      {"version", ""},
  };
}

TEST_F(Writes, StandardOutputThatFailsIsAnError) {
  const std::string hone = hone_program();
  for (const auto& [verb, arguments] : printing(path)) {
    SCOPED_TRACE(verb);
    const std::string command = hone + " " + verb + " " + arguments;
    const ShellOutcome full = run_shell("(" + command + " > /dev/full)");
    EXPECT_EQ(full.code, 2) << full.out;
    EXPECT_THAT(full.out, HasSubstr("standard output cannot be written: No space left"));
  }
  const ShellOutcome closed = run_shell(hone + " version >&-");
  EXPECT_EQ(closed.code, 2) << closed.out;
  EXPECT_EQ(run_shell(hone + " --help > /dev/full").code, 2);
}

TEST_F(Writes, ATrainingRunIsCompleteWithoutItsStandardOutput) {
  const Folder folder;
  const std::string model = (folder / "model").string(), out = (folder / "out").string();
  folder.write("config.json", tiny_config().dump());
  ASSERT_EQ(run_hone({"init", "--new-model", (folder / "config.json").string(), model}).code, 0);
  std::string command = hone_program();
  for (const std::string& word :
       train_arguments(model, folder.write("data.jsonl", progressions(20)), out, {"max_steps=1"})) {
    command += " '" + word + "'";
  }
  const ShellOutcome outcome = run_shell("(" + command + " > /dev/full)");
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_TRUE(fs::exists(folder / "out/model.safetensors"));
}

TEST_F(Writes, AReaderThatGoesAwayEndsTheProgramSilently) {
  for (const char* verb : {"schema", "prepare", "generate"}) {
    const std::string command = hone_program() + " " + verb + " " + printing(path).at(verb);
    // The reader ends before anything is written.
    const ShellOutcome gone = run_shell("bash -c '{ sleep 0.2; " + command + "; echo $? >&2; } | true'");
    EXPECT_THAT(gone.out, testing::EndsWith("141\n")) << verb;
    EXPECT_THAT(gone.out, testing::Not(HasSubstr("error"))) << verb;
  }
}

TEST_F(Writes, EveryVerbIsTriedWithAStandardOutputThatFails) {
  // Verbs that print about what they write; it is written then.
  const std::set<std::string> print_about_files = {"merge",      "export",    "convert", "quickstart",
                                                   "bench step", "bench ops", "verify",  "bench",
                                                   "download",   "report",    "compare", "sweep"};
  const std::set<std::string> print_to_standard_error = {"serve"};
  CLI::App app("", "hone");
  Action action;
  add_verbs(app, action, {});
  const auto tried = printing(path);
  each_verb(app, "", [&](const std::string& verb, const CLI::App&) {
    EXPECT_TRUE(tried.contains(verb) || print_about_files.contains(verb) || print_to_standard_error.contains(verb))
        << verb;
  });
}

}  // namespace
}  // namespace hone
