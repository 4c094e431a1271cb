#include "train/save/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "kernels/cpu/row_math/row_math.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/tensor_dims.h"
#include "weights/tensor_file.h"

namespace hone {

namespace {

constexpr int kVersion = 2;
constexpr const char* kTensors = "training_state.safetensors";
constexpr const char* kValues = "training_state.json";

/// The tensors of a parameter's state by name.
struct NamedState {
  std::string name;
  StatePart part;
  StateTensor tensor;
};

std::vector<NamedState> state_tensors(const Parameter& parameter) {
  std::vector<NamedState> tensors;
  for (const auto& [name, part] : {std::pair{"/m", StatePart::kM},
                                   {"/m_scales", StatePart::kMScales},
                                   {"/v", StatePart::kV},
                                   {"/v_scales", StatePart::kVScales},
                                   {"/v_rows", StatePart::kVRows},
                                   {"/v_columns", StatePart::kVColumns},
                                   {"/master", StatePart::kValue}}) {
    const StateTensor tensor = state_tensor(parameter, part);
    if (tensor.kept()) tensors.push_back({parameter.name() + name, part, tensor});
  }
  return tensors;
}

/// UserError if a run cannot have written this state.
void require_possible(const RunState& state, const std::filesystem::path& path) {
  constexpr int64_t kMost = int64_t{1} << 48;
  const auto require = [&](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return;
    throw UserError(fmt::format("the training state is damaged: {} is {}, not from {} to {}", name, value, least, most),
                    path.string(), "resume from an older checkpoint");
  };
  require("step", state.step, 0, kMost);
  require("optimizer_step", state.optimizer_step, 0, state.step);
  require("first_data_step", state.first_data_step, 0, state.step);
  require("best_step", state.best_step, -1, state.step);
  require("evals_without_improvement", state.evals_without_improvement, 0, kMost);
  require("total_steps", state.total_steps, 0, kMost);
  require("branch", state.branch, 0, kMost);
  require("num_tokens", state.num_tokens, 0, int64_t{1} << 62);
  require("num_supervised_tokens", state.num_supervised_tokens, 0, state.num_tokens);
  require("num_samples", state.num_samples, 0, int64_t{1} << 62);
}

}  // namespace

TensorFile training_state_file(const ParameterStore& store) {
  TensorFile file{kTensors, {}};
  for (const Parameter& parameter : store.all()) {
    if (!parameter.trainable()) continue;
    for (const NamedState& state : state_tensors(parameter)) {
      file.tensors.push_back(run_of({state.name, state.tensor.dtype, dims_of(state.tensor.shape)},
                                    {&parameter, state.part, {0, state.tensor.shape.numel()}}));
    }
  }
  return file;
}

void write_run_state(const std::filesystem::path& directory, const RunState& state) {
  const Json json = {{"version", kVersion},
                     {"step", state.step},
                     {"optimizer_step", state.optimizer_step},
                     {"epoch", state.epoch},
                     {"evaluation_due", state.evaluation_due},
                     {"num_tokens", state.num_tokens},
                     {"num_supervised_tokens", state.num_supervised_tokens},
                     {"num_samples", state.num_samples},
                     {"best_metric", state.best_metric},
                     {"best_step", state.best_step},
                     {"evals_without_improvement", state.evals_without_improvement},
                     {"first_data_step", state.first_data_step},
                     {"seed", state.seed},
                     {"data", state.data},
                     {"model", state.model},
                     {"total_steps", state.total_steps},
                     {"router_watch", state.router_watch},
                     {"branch", state.branch},
                     {"evaluations", state.evaluations}};
  write_text_file(directory / kValues, json.dump(2) + "\n");
}

void save_training_state(const std::filesystem::path& directory, const ParameterStore& store, const RunState& state,
                         FileChecksums* checksums) {
  const TensorFile file = training_state_file(store);
  write_files(directory, {&file, 1}, checksums);
  write_run_state(directory, state);
}

int64_t least_saved_bytes(const ParameterStore& store, const RunConfig& config) {
  const bool moments = config.checkpoint.save_strategy != Cadence::kNo && !config.checkpoint.save_only_model &&
                       (config.optim.name == OptimizerName::kAdamw || config.optim.name == OptimizerName::kAdamw8bit);
  const bool lora = config.model.finetuning_type == FinetuningType::kLora;
  int64_t bytes = 0;
  for (const Parameter& parameter : store.all()) {
    const int64_t numel = parameter.shape().numel();
    const bool written = lora ? parameter.trainable() : parameter.spec().kind != ParameterKind::kLora;
    if (written) bytes += numel * static_cast<int64_t>(size_of(parameter.value().dtype()));
    if (!parameter.trainable() || !moments) continue;
    for (const DType dtype : {config.model.opt_m_dtype, config.model.opt_v_dtype})
      bytes += numel * static_cast<int64_t>(size_of(dtype));
  }
  return bytes;
}

std::optional<RunState> read_run_state(const std::filesystem::path& directory) {
  const std::optional<Json> read = read_json_if_there(directory / kValues);
  if (!read) return std::nullopt;
  const Json& json = *read;
  RunState state;
  try {
    if (json.at("version") != kVersion) {
      throw UserError(fmt::format("the training state has version {}, this program reads version {}",
                                  json.at("version").dump(), kVersion),
                      (directory / kValues).string(), "resume with the version of the program that wrote it");
    }
    const auto take = [&]<class Int>(const char* name, Int& into, bool since_the_first_version = true) {
      if (!since_the_first_version && !json.contains(name)) return;
      const std::optional<Int> value = whole_number<Int>(json.at(name));
      if (!value) {
        throw UserError(fmt::format("the training state is damaged: {} is not a whole number", name),
                        (directory / kValues).string(), "resume from an older checkpoint");
      }
      into = *value;
    };
    take("step", state.step);
    take("optimizer_step", state.optimizer_step);
    state.epoch = json.value("epoch", 0.0);
    state.evaluation_due = json.value("evaluation_due", false);
    take("num_tokens", state.num_tokens);
    take("num_supervised_tokens", state.num_supervised_tokens);
    take("num_samples", state.num_samples);
    json.at("best_metric").get_to(state.best_metric);
    take("best_step", state.best_step);
    take("evals_without_improvement", state.evals_without_improvement, false);
    if (const Json evaluations = json.value("evaluations", Json::object()); evaluations.is_object()) {
      state.evaluations = evaluations;
    }
    take("first_data_step", state.first_data_step, false);
    take("seed", state.seed);
    state.data = json.at("data");
    state.model = json.value("model", Json(nullptr));
    take("total_steps", state.total_steps);
    state.router_watch = json.value("router_watch", Json(nullptr));
    take("branch", state.branch, false);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(std::string("the training state is damaged: ") + error.what(), (directory / kValues).string(),
                    "resume from an older checkpoint");
  }
  using Identity = std::pair<const char*, const JsonValue*>;
  for (const auto& [name, identity] : {Identity{"data", &state.data}, {"model", &state.model}}) {
    if (identity->is_object() || (identity->is_null() && identity == &state.model)) continue;
    throw UserError(fmt::format("the training state is damaged: {} is not an object", name),
                    (directory / kValues).string(), "resume from an older checkpoint");
  }
  require_possible(state, directory / kValues);
  return state;
}

RunState load_training_state(const std::filesystem::path& directory, ParameterStore& store, FileLedger* ledger) {
  const std::optional<RunState> state = read_run_state(directory);
  if (!state) {
    throw UserError("the checkpoint has no training state, so it cannot be resumed", (directory / kValues).string(),
                    "it was saved with save_only_model: resume_only_model=true loads its weights");
  }
  SafetensorsFile tensors(directory / kTensors);
  tensors.record_reads(ledger);
  constexpr int64_t kPiece = int64_t{1} << 22;
  PieceWriter writer(kPiece * sizeof(float));
  size_t used = 0;
  for (Parameter& parameter : store.all()) {
    if (!parameter.trainable()) continue;
    for (const NamedState& wanted : state_tensors(parameter)) {
      const StateTensor& to = wanted.tensor;
      const SafetensorsEntry* entry = tensors.find(wanted.name);
      if (!entry || entry->dtype != to.dtype || entry->shape != dims_of(to.shape)) {
        throw UserError("the training state has no '" + wanted.name + "' of the right shape and dtype",
                        tensors.path().string(),
                        "resume with the same model, finetuning_type, LoRA, freezing, optim, optim_args, master_dtype, "
                        "opt_m_dtype and opt_v_dtype options");
      }
      const auto size = static_cast<int64_t>(size_of(entry->dtype));
      // If values are whole on every rank, each reads what it steps; the others send it the rest.
      const Slice own =
          parameter.share().sharded() && !is_sharded(parameter, wanted.part) ? parameter.share().own() : to.slice;
      for (int64_t in_file = own.begin; in_file < own.end(); in_file += kPiece) {
        const int64_t count = std::min(kPiece, own.end() - in_file);
        std::byte* elements = writer.open(to.here, in_file - to.slice.begin, count);
        tensors.read(*entry, static_cast<uint64_t>(in_file * size), elements, static_cast<uint64_t>(count * size));
        if (!to.exact) continue;
        const StoredValue& value = parameter.value().stored();
        auto* rounded = reinterpret_cast<BFloat16*>(writer.open(value.payload, in_file - value.slice.begin, count));
        row_math().narrow(reinterpret_cast<const float*>(elements), rounded, count);
      }
      ++used;
    }
  }
  writer.finish();
  if (used != tensors.entries().size()) {
    throw UserError("the training state has parameters or moments that this run does not train or keep",
                    tensors.path().string(), "resume with the same finetuning_type, LoRA, freezing and optim options");
  }
  return *state;
}

}  // namespace hone
