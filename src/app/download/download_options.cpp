#include <CLI/CLI.hpp>

#include <memory>

#include "app/download/download.h"
#include "app/verbs.h"

namespace hone {

void add_download(CLI::App& app, Action& action) {
  CLI::App* verb = add_verb(app, "download", "Bring a model or a data set of the Hugging Face hub here",
                            "  hone download Qwen/Qwen3-30B-A3B\n"
                            "  hone download Qwen/Qwen3-0.6B --revision v1.0\n"
                            "  hone download openai/gsm8k --repo-type dataset\n"
                            "  hone download org/model --include '*.json' --exclude 'vocab*'\n"
                            "Other verbs take the name and download what is not here: model_name_or_path: "
                            "Qwen/Qwen3-0.6B.\n"
                            "HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are those of "
                            "huggingface_hub, and the cache is the same (docs/hub.md).");
  auto options = std::make_shared<DownloadOptions>();
  verb->add_option("ID", options->id, "ORG/NAME, or ORG/NAME@REVISION")->required();
  verb->add_option("--revision", options->revision, "a branch, a tag or a commit; default: main");
  verb->add_option("--repo-type", options->repo_type, "model or dataset")->capture_default_str();
  verb->add_option("--include", options->include,
                   "only files that match this pattern, such as '*.json', instead of weights, tokenizer, templates and "
                   "configurations; several times for several");
  verb->add_option("--exclude", options->exclude, "leave out files that match this pattern");
  verb->add_flag("--yes", options->yes, "also a model of more than 10 GB that no setting makes fit on this machine");
  add_json(verb, options->json);
  verb->callback([=, &action] { action = [=] { return run_download(*options); }; });
}

}  // namespace hone
