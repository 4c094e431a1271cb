// The functions of include/hone/hone.h.
#include <hone/hone.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "app/cli.h"
#include "app/train/train_verbs.h"
#include "config/resolve.h"
#include "core/base/program.h"
#include "core/text/json.h"
#include "library/expert_layer.h"
#include "library/library_call.h"
#include "library/library_model.h"
#include "library/settings.h"
#include "library/verb_words.h"
#include "train/run/stop_signal.h"

struct hone_model {
  hone::LibraryModel model;
};

struct hone_experts {
  hone::ExpertLayer layer;
};

namespace {

using namespace hone;

/// Runs a verb with `settings`; its output is the result, if one is wanted. An exit code without an error becomes one.
int run_as_verb(const char* verb, const char* settings, const hone_listener* listener, char** result,
                hone_error** error) {
  LibraryCall call(listener);
  return call.run(error, result != nullptr, [&] {
    JsonValue options = settings_of(settings, "settings");
    if (result != nullptr) options["json"] = true;
    std::vector<std::string> words = verb_words(verb, options);
    words.insert(words.begin(), "hone");
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    const int code = run_verb(static_cast<int>(argv.size()), argv.data());
    if (code != 0) {
      throw Error(static_cast<ExitCode>(code), std::string("hone ") + verb + " ends with this exit code", "",
                  "on_log has said why");
    }
    if (result != nullptr) *result = text_of(call.output());
  });
}

JsonValue train_with(JsonValue settings, const LibraryCall& call) {
  RunRequest request;
  request.config = take_text(settings, "config", "");
  if (const std::string level = take_text(settings, "log_level", ""); !level.empty()) {
    request.log_level = parse_log_level(level);
    if (!request.log_level) throw UserError("'" + level + "' is not a log level", "settings: log_level");
  }
  const bool dry = take_switch(settings, "dry_run");
  request.overrides = overrides_of(settings);
  Json last;
  request.on_metrics = [&](const JsonValue& row) {
    last = *row;
    if (call.metrics(row->dump())) request_stop();
  };
  const int code = run_train(request, dry);
  const bool stopped = code == static_cast<int>(ExitCode::kResumable);
  if (code != 0 && !stopped) throw Error(static_cast<ExitCode>(code), "training ended with this exit code", "", "");
  return Json{{"stopped", stopped},
              {"stopped_by", stopped ? Json(last_stop()) : Json(nullptr)},
              {"output_dir", load_config(request.config, request.overrides).run.report.output_dir},
              {"last", last}};
}

}  // namespace

extern "C" {

const char* hone_version(void) { return hone::version(); }

const char* hone_error_message(const hone_error* error) { return error->error.message().c_str(); }
const char* hone_error_where(const hone_error* error) { return error->error.where().c_str(); }
const char* hone_error_fix(const hone_error* error) { return error->error.fix().c_str(); }
int hone_error_code(const hone_error* error) { return static_cast<int>(error->error.code()); }
void hone_error_free(hone_error* error) { delete error; }
void hone_text_free(char* text) { std::free(text); }

int hone_plan(const char* settings, const hone_listener* listener, char** result, hone_error** error) {
  return run_as_verb("estimate", settings, listener, result, error);
}

int hone_evaluate(const char* settings, const hone_listener* listener, char** result, hone_error** error) {
  return run_as_verb("eval", settings, listener, result, error);
}

int hone_merge(const char* settings, const hone_listener* listener, hone_error** error) {
  return run_as_verb("merge", settings, listener, nullptr, error);
}

int hone_train(const char* settings, const hone_listener* listener, char** result, hone_error** error) {
  LibraryCall call(listener);
  return call.run(error, false, [&] {
    const JsonValue ended = train_with(settings_of(settings, "settings"), call);
    if (result != nullptr) *result = text_of(ended.dump());
  });
}

void hone_stop(void) {
  if (LibraryCall::running()) request_stop();
}

int hone_model_open(const char* settings, const hone_listener* listener, hone_model** model, hone_error** error) {
  LibraryCall call(listener);
  return call.run(error, false, [&] {
    *model = new hone_model{
        LibraryModel(settings_of(settings, "settings"), [&](const std::string& line) { call.log(line); })};
  });
}

int hone_model_generate(hone_model* model, const char* request, const hone_listener* listener, char** result,
                        hone_error** error) {
  LibraryCall call(listener);
  return call.run(error, false, [&] {
    const JsonValue answers = model->model.generate(
        settings_of(request, "request"),
        [&](int64_t sequence, const std::string& text) { return call.text(sequence, text); }, stop_requested);
    if (result != nullptr) *result = text_of(answers->dump(-1, ' ', false, Json::error_handler_t::replace));
  });
}

void hone_model_free(hone_model* model) { delete model; }

int hone_experts_create(const char* settings, hone_experts** experts, hone_error** error) {
  return guarded_call(error, [&] { *experts = new hone_experts{ExpertLayer(settings_of(settings, "settings"))}; });
}

void hone_experts_free(hone_experts* experts) { delete experts; }

int hone_experts_set(hone_experts* experts, int64_t expert, const void* gate, const void* up, const void* down,
                     hone_error** error) {
  return guarded_call(error, [&] { experts->layer.set(expert, gate, up, down); });
}

int hone_experts_tensor(hone_experts* experts, const char* name, float** data, int64_t* shape, hone_error** error) {
  return guarded_call(error, [&] {
    const Tensor tensor = experts->layer.tensor(name);
    *data = tensor.as<float>();
    for (int i = 0; i < tensor.shape.rank(); ++i) shape[i] = tensor.shape[i];
  });
}

int hone_experts_zero_grad(hone_experts* experts, hone_error** error) {
  return guarded_call(error, [&] { experts->layer.zero_grad(); });
}

int hone_experts_forward(hone_experts* experts, int64_t tokens, int64_t choices, const void* x, const int64_t* ids,
                         const float* weights, void* out, int training, hone_error** error) {
  return guarded_call(error, [&] { experts->layer.forward({tokens, choices, x, ids, weights}, out, training != 0); });
}

int hone_experts_backward(hone_experts* experts, const void* dout, void* dx, float* dweights, hone_error** error) {
  return guarded_call(error, [&] { experts->layer.backward(dout, dx, dweights); });
}

int hone_experts_sync(hone_experts* experts, hone_error** error) {
  return guarded_call(error, [&] { experts->layer.synchronize(); });
}

/// The program, for the launcher of releases (app/launcher_static.cpp); no part of the interface.
HONE_API int hone_program_main(int argc, char** argv) { return run_command_line(argc, argv); }

}  // extern "C"
