#include "app/quickstart/quickstart.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "app/init/init.h"
#include "app/merge/merge.h"
#include "app/quickstart/made_files.h"
#include "app/quickstart/quickstart_files.h"
#include "app/quickstart/story.h"
#include "config/resolve.h"
#include "config/resolved_yaml.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "report/humanise.h"
#include "session/device_facts.h"
#include "train/run/trainer.h"
#include "weights/checkpoint.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr double kEnglishBar = 0.95, kGermanBar = 0.85, kEnglishKeptBar = 0.90;
constexpr size_t kShownAnswers = 4;
constexpr int64_t kLoadSamples = 400;
/// The command that runs this program from the current folder: "build/hone".
std::string program_name() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path here = fs::relative(program, fs::current_path(error), error);
  return error || here.empty() || *here.begin() == ".." ? "hone" : here.generic_string();
}

struct Tests {
  std::vector<Example> english, german, english_new, german_new;
};

class Quickstart {
 public:
  explicit Quickstart(const QuickstartOptions& options)
      : options_(options),
        folder_(options.output),
        made_(folder_, options.force),
        console_(Terminal::of(1)),
        story_(console_),
        stream_(choose_device(options.device, "--device"), pool_) {}

  int run() {
    introduce();
    make_files();
    if (const ExitCode code = english(); code != ExitCode::kOk) return static_cast<int>(code);
    if (const ExitCode code = german(); code != ExitCode::kOk) return static_cast<int>(code);
    merge();
    show_experts();
    show_new_wordings();
    made_.make("report.json", [&] { write_report(); });
    const int code = conclude();
    console_.require_written();
    return code;
  }

 private:
  void introduce() {
    story_.title("Hone quickstart", fmt::format("seed {}", options_.seed));
    story_.say(fmt::format(
        "A small Mixture-of-Experts model with random weights learns to read calendar entries, here and now,\n"
        "in about five minutes. Data, model and configurations are written first; then everything takes the path\n"
        "that your own model would take. It is asked for moments it has never seen, so nothing can be memorised.\n"
        "\n"
        "{0}/data         questions and answers, one a line\n"
        "{0}/blank        Qwen3-MoE: 4 layers of 8 experts, 2 of them for each token, and a tokenizer; no weights\n"
        "{0}/act1.yaml, act2.yaml",
        folder_.generic_string()));
  }

  void make_files() {
    const QuickstartBudget& budget = options_.budget;
    tests_ = {.english = read_examples("data/english_test.jsonl", budget.test_examples),
              .german = read_examples("data/german_test.jsonl", budget.test_examples),
              .english_new = read_examples("data/english_new_wordings.jsonl", budget.new_examples),
              .german_new = read_examples("data/german_new_wordings.jsonl", budget.new_examples)};
    for (const QuickstartFile& file : quickstart_files()) {
      const fs::path name(file.name);
      if (name.parent_path() == "data") write("data", name.filename(), file.text);
      if (name.parent_path() == "model") write("blank", name.filename(), file.text);
    }
    make_model();
    write("", "act1.yaml", run_in_folder("act1.yaml", folder_, keys_of(budget.english_steps, 4)));
    write("", "act2.yaml", run_in_folder("act2.yaml", folder_, keys_of(budget.german_steps, 2)));
  }

  void write(const fs::path& part, const fs::path& name, std::string_view text) {
    if (!part.empty()) require_own_folder(part);
    made_.make((part / name).generic_string(), [&] { write_text_file(folder_ / part / name, std::string(text)); });
  }

  /// Draws the weights as the command does that it prints.
  void make_model() {
    const std::string blank = (folder_ / "blank").string(), model = (folder_ / "model").string();
    story_.say(fmt::format("{} init --new-model {} {} --tokenizer {} --seed {} --force\n\nThe model with its weights:",
                           program_name(), blank, model, blank, options_.seed));
    const NewModelOptions options{
        .config = blank, .output = model, .tokenizer = blank, .dtype = "", .seed = options_.seed, .force = true};
    made_.make("model", [&] { run_new_model(options); });
  }

  /// The keys of a run of so many steps and evaluations.
  std::map<std::string, std::string> keys_of(int64_t steps, int64_t evaluations) const {
    const auto one_of = [&](int64_t parts) { return std::to_string(std::max<int64_t>(1, steps / parts)); };
    return {{"max_steps", std::to_string(steps)},
            {"logging_steps", one_of(options_.budget.log_lines)},
            {"eval_steps", one_of(evaluations)},
            {"seed", std::to_string(options_.seed)},
            {"device", options_.device}};
  }

  /// Creates a folder of the output, which must not be a link to another one.
  void require_own_folder(const fs::path& name) const {
    std::error_code error;
    if (fs::is_symlink(fs::symlink_status(folder_ / name, error))) {
      throw UserError("the quickstart does not write through links", (folder_ / name).string(), "remove the link");
    }
    fs::create_directories(folder_ / name, error);
    if (error) throw UserError("the folder cannot be made: " + error.message(), (folder_ / name).string());
  }

  /// Trains as `hone train FOLDER/ACT.yaml` does.
  ExitCode train(const std::string& act, double& seconds) {
    ExitCode code = ExitCode::kOk;
    made_.make(act, [&] { code = train_file(act + ".yaml", seconds); });
    return code;
  }

  ExitCode train_file(const std::string& file, double& seconds) {
    const auto begin = std::chrono::steady_clock::now();
    Logger logger(console_, LogLevel::kWarning);
    const RunConfig run = load_config((folder_ / file).string(), {}).run;
    RunContext context(run.machine, logger, {resolved_yaml, resolved_pairs, {}});
    const ExitCode code = hone::train(run, context);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return code;
  }

  ExitCode english() {
    story_.act("Act 1", "full fine-tuning: English to ISO 8601");
    story_.say(
        fmt::format("{} train {}\n\nThe data, a sample of which the marked part gets loss, and the memory it takes:",
                    program_name(), (folder_ / "act1.yaml").generic_string()));
    const Answers before = ask({folder_ / "model"}, tests_.english, stream_);
    if (const ExitCode code = train("act1", english_seconds_); code != ExitCode::kOk) return code;
    const Answers after = ask({folder_ / "act1"}, tests_.english, stream_);
    story_.losses(folder_ / "act1");
    show_answers(tests_.english, before, after);
    english_ = {"English, unseen moments", before.accuracy(), after.accuracy(), kEnglishBar};
    story_.measures({english_});
    return ExitCode::kOk;
  }

  ExitCode german() {
    story_.act("Act 2", "LoRA on attention and experts: the same in German");
    story_.say(
        fmt::format("{} train {}\n\nThe weights of act 1 do not change; small adapters learn, "
                    "with some English replayed:",
                    program_name(), (folder_ / "act2.yaml").generic_string()));
    const ModelPath base{folder_ / "act1"}, adapted{folder_ / "act1", folder_ / "act2"};
    const Answers before = ask(base, tests_.german, stream_);
    if (const ExitCode code = train("act2", german_seconds_); code != ExitCode::kOk) return code;
    const Answers after = ask(adapted, tests_.german, stream_);
    story_.losses(folder_ / "act2");
    show_answers(tests_.german, before, after);
    german_ = {"German, unseen moments", before.accuracy(), after.accuracy(), kGermanBar};
    kept_ = {"English, still", english_.after, ask(adapted, tests_.english, stream_).accuracy(), kEnglishKeptBar};
    story_.measures({german_, kept_});
    return ExitCode::kOk;
  }

  void merge() {
    const std::string model = (folder_ / "act1").string(), adapter = (folder_ / "act2").string(),
                      output = (folder_ / "merged").string();
    story_.act("Merge", "the adapter becomes part of the weights, and the written files are checked");
    story_.say(
        fmt::format("{} merge --model {} --adapter {} --output {} --force", program_name(), model, adapter, output));
    MergeOptions options;
    options.model = model;
    options.adapter = adapter;
    options.output = output;
    options.force = true;
    made_.make("merged", [&] { run_merge(options); });
  }

  void show_answers(const std::vector<Example>& examples, const Answers& before, const Answers& after) {
    story_.say("Answers to moments that are in no training data:");
    std::vector<AnswerPair> pairs;
    for (size_t i = 0; i < std::min(kShownAnswers, examples.size()); ++i) {
      pairs.push_back({&examples[i], before.texts[i], after.texts[i]});
    }
    story_.answers(pairs);
  }

  void show_experts() {
    story_.act("Experts", "where the merged model sends each language");
    const fs::path data = folder_ / "data";
    story_.expert_load(measure_expert_load(folder_ / "merged", data / "english_test.jsonl", kLoadSamples, stream_),
                       measure_expert_load(folder_ / "merged", data / "german_test.jsonl", kLoadSamples, stream_));
  }

  void show_new_wordings() {
    story_.act("Beyond", "wordings that no training sentence had");
    const ModelPath base{folder_ / "act1"}, merged{folder_ / "merged"};
    story_.say(
        fmt::format("As in “{}”. This is what it does, not what it must do:", tests_.english_new.front().question));
    story_.measures({{"English, new wordings", ask(base, tests_.english_new, stream_).accuracy(),
                      ask(merged, tests_.english_new, stream_).accuracy()},
                     {"German, new wordings", ask(base, tests_.german_new, stream_).accuracy(),
                      ask(merged, tests_.german_new, stream_).accuracy()}},
                    "after act 1", "after act 2");
  }

  void write_report() const {
    const Json report = {{"act1",
                          {{"exact_match_before", english_.before},
                           {"exact_match_after", english_.after},
                           {"seconds", english_seconds_}}},
                         {"act2",
                          {{"german_before", german_.before},
                           {"german_after", german_.after},
                           {"english_after", kept_.after},
                           {"seconds", german_seconds_}}},
                         {"seed", options_.seed}};
    write_text_file(folder_ / "report.json", report.dump(2) + "\n");
  }

  int conclude() {
    story_.act("Done",
               fmt::format("{} and {} of training", human_duration(english_seconds_), human_duration(german_seconds_)));
    const std::string folder = folder_.generic_string(), hone = program_name();
    story_.commands({{folder + "/merged", "the model, as any Hugging Face checkpoint"},
                     {folder + "/act2", "the adapter, as PEFT reads it"},
                     {folder + "/act1", "the model of act 1; report.html, metrics.jsonl, TensorBoard files, run.log"},
                     {folder + "/report.json", "the numbers above"}});
    story_.say("Next, with your own model and data:");
    story_.commands({{hone + " init ./YOUR-MODEL --data chats.jsonl", "writes run.yaml, commented"},
                     {hone + " estimate run.yaml", "the memory it needs, from headers alone"},
                     {hone + " train run.yaml --dry-run", "one step, how long it will take; writes nothing"}});
    bool reached = true;
    for (const Measure& measure : {english_, german_, kept_}) {
      if (measure.reached()) continue;
      reached = false;
      story_.say(fmt::format("A check did not hold: {} answered {:.1f} %, at least {:.1f} % was expected.",
                             measure.what, 100 * measure.after, 100 * measure.bar));
    }
    return static_cast<int>(reached ? ExitCode::kOk : ExitCode::kCheckFailed);
  }

  QuickstartOptions options_;
  fs::path folder_;
  MadeFiles made_;
  Console console_;
  Story story_;
  ThreadPool pool_;
  Stream stream_;
  Tests tests_;
  Measure english_, german_, kept_;
  double english_seconds_ = 0, german_seconds_ = 0;
};

}  // namespace

int run_quickstart(const QuickstartOptions& options) { return Quickstart(options).run(); }

}  // namespace hone
