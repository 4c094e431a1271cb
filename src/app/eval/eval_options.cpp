#include <CLI/CLI.hpp>

#include <memory>

#include "app/eval/eval.h"
#include "app/train/train_options.h"
#include "app/verbs.h"

namespace hone {

namespace {

void add_task(CLI::App* verb, TaskOptions& task) {
  const char* group = "A task";
  const auto add = [&](const char* name, auto& value, const char* what) {
    return verb->add_option(name, value, what)->group(group);
  };
  const auto add_flag = [&](const char* name, bool& value, const char* what) {
    verb->add_flag(name, value, what)->group(group);
  };
  add("--task", task.file, "file or folder of rows that the model answers: rows as training reads, or multiple choice");
  add("--metrics,--metric", task.metrics,
      "exact_match, rougeL of written answers; acc, acc_norm, acc_bytes of multiple choice")
      ->delimiter(',')
      ->allow_extra_args(false);
  add("--task-column-mapping", task.column_mapping, "columns with other names, such as '{\"prompt\": \"customer\"}'");
  add("--doc-to-text", task.doc_to_text, "prompt as text: a Jinja template over the row's columns, or a column");
  add("--doc-to-target", task.doc_to_target, "the reference, or the right choice: a column, or a template");
  add("--doc-to-choice", task.doc_to_choice, "the choices: a column, or a template that writes a JSON list");
  add("--num-fewshot", task.num_fewshot, "examples before each prompt")->capture_default_str();
  add("--fewshot-file", task.fewshot_file,
      "rows of the examples; default: the first ones of the task, which are then left out");
  add("--answer-pattern", task.answer_pattern,
      "regular expression for the answer in what the model writes and in the reference: '#### (\\-?[0-9.,]+)'");
  add("--group-select", task.group_select, "which of its matches: 0 the first, -1 the last")->capture_default_str();
  add("--until", task.until, "a text at which an answer ends, may be repeated; default: a blank line, but not in chats")
      ->allow_extra_args(false);
  add_flag("--ignore-case", task.ignore_case, "exact_match: compare in lower case");
  add_flag("--ignore-punctuation", task.ignore_punctuation, "exact_match: leave out punctuation");
  add_flag("--ignore-numbers", task.ignore_numbers, "exact_match: leave out digits");
  add("--regexes-to-ignore", task.regexes_to_ignore, "exact_match: leave out what this matches, may be repeated")
      ->allow_extra_args(false);
  add_output(verb, "--predictions", task.predictions, "JSONL file to write: what the model said to each row")
      ->group(group);
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "eval", "Loss, perplexity, accuracy and task metrics of a model on data",
                            "  hone eval run.yaml\n"
                            "  hone eval run.yaml --checkpoint out/run1\n"
                            "  hone eval run.yaml --adapter out/run1 --base --prompts questions.txt\n"
                            "  hone eval run.yaml eval_datasets=test.jsonl val_split=0 --json\n"
                            "  hone eval run.yaml --adapter out/run1 --base --task test.jsonl --metrics exact_match\n"
                            "  hone eval model_name_or_path=out/full1 --task arc.jsonl --metrics acc,acc_norm\n"
                            "  hone eval model_name_or_path=out/full1 --task gsm8k.jsonl --answer-pattern '#### (.*)' "
                            "--predictions said.jsonl");
  auto options = add_config(verb);
  auto request = std::make_shared<EvalRequest>();
  verb->add_option("--checkpoint,--adapter,--adapter-path", request->checkpoint,
                   "evaluate this folder, a model or an adapter, instead of the configuration's");
  verb->add_flag("--base", request->base, "compare with the model before training");
  add_task(verb, request->task);
  verb->add_option("--max-samples,--limit", request->max_samples, "only the first samples of the data and of the task");
  verb->add_option("--prompts", request->prompts, "file of prompts to answer: .txt, one a line, or .jsonl");
  add_output(verb, "--output", request->output,
             "JSON file to write; default with --base: evaluation_results.json in the checkpoint's folder");
  add_force(verb, request->force, "replace the output file, even if it is not an earlier evaluation");
  add_json(verb, request->json);
  add_tier(verb);
  verb->callback([=, &action] {
    action = [=] {
      request->run = request_of(*options, verb->remaining());
      return run_eval(*request);
    };
  });
}

}  // namespace hone
