#include "train/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>

#include "core/error.h"
#include "core/untrusted_json.h"
#include "weights/checkpoint.h"
#include "weights/safetensors.h"
#include "weights/tensor_pieces.h"

namespace hone {

namespace {

constexpr int kVersion = 2;
constexpr const char* kTensors = "training_state.safetensors";
constexpr const char* kValues = "training_state.json";

/// The tensors of a parameter's state under their names.
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
    StateTensor tensor = state_tensor(parameter, part);
    if (tensor.kept()) tensors.push_back({parameter.name() + name, part, std::move(tensor)});
  }
  return tensors;
}

std::vector<int64_t> dims_of(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

}  // namespace

void save_training_state(const std::filesystem::path& directory, const ParameterStore& store, const RunState& state,
                         StateReader& reader) {
  std::vector<std::pair<const Parameter*, NamedState>> tensors;
  std::vector<SafetensorsWriter::Announced> announced;
  for (const Parameter& parameter : store.all()) {
    if (!parameter.trainable()) continue;
    for (NamedState& state_tensor : state_tensors(parameter)) {
      announced.push_back({state_tensor.name, state_tensor.tensor.dtype, dims_of(state_tensor.tensor.shape)});
      tensors.emplace_back(&parameter, std::move(state_tensor));
    }
  }
  SafetensorsWriter writer(directory / kTensors, std::move(announced));
  for (const auto& [parameter, wanted] : tensors) {
    reader.read(*parameter, wanted.part, 0, wanted.tensor.shape.numel(), [&](const std::byte* elements, int64_t count) {
      writer.write(elements, static_cast<uint64_t>(count) * size_of(wanted.tensor.dtype));
    });
  }
  writer.finish();
  const Json json = {{"version", kVersion},
                     {"step", state.step},
                     {"optimizer_step", state.optimizer_step},
                     {"num_tokens", state.num_tokens},
                     {"num_supervised_tokens", state.num_supervised_tokens},
                     {"num_samples", state.num_samples},
                     {"best_metric", state.best_metric},
                     {"best_step", state.best_step},
                     {"evals_without_improvement", state.evals_without_improvement},
                     {"first_data_step", state.first_data_step},
                     {"seed", state.seed},
                     {"data", state.data},
                     {"total_steps", state.total_steps},
                     {"router_watch", state.router_watch}};
  write_text_file(directory / kValues, json.dump(2) + "\n");
}

std::optional<RunState> read_run_state(const std::filesystem::path& directory) {
  std::ifstream file(directory / kValues);
  if (!file) return std::nullopt;
  const Json json = parse_json(file);
  RunState state;
  try {
    if (json.at("version") != kVersion) {
      throw UserError(fmt::format("the training state has version {}, this program reads version {}",
                                  json.at("version").dump(), kVersion),
                      (directory / kValues).string(), "resume with the version of the program that wrote it");
    }
    json.at("step").get_to(state.step);
    json.at("optimizer_step").get_to(state.optimizer_step);
    json.at("num_tokens").get_to(state.num_tokens);
    json.at("num_supervised_tokens").get_to(state.num_supervised_tokens);
    json.at("num_samples").get_to(state.num_samples);
    json.at("best_metric").get_to(state.best_metric);
    json.at("best_step").get_to(state.best_step);
    state.evals_without_improvement = json.value("evals_without_improvement", int64_t{0});
    state.first_data_step = json.value("first_data_step", int64_t{0});
    json.at("seed").get_to(state.seed);
    state.data = json.at("data");
    json.at("total_steps").get_to(state.total_steps);
    state.router_watch = json.value("router_watch", Json(nullptr));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(std::string("the training state is damaged: ") + error.what(), (directory / kValues).string(),
                    "resume from an older checkpoint");
  }
  return state;
}

RunState load_training_state(const std::filesystem::path& directory, ParameterStore& store) {
  const std::optional<RunState> state = read_run_state(directory);
  if (!state) {
    throw UserError("the checkpoint has no training state, so it cannot be resumed", (directory / kValues).string(),
                    "it was saved with save_only_model: resume_only_model=true takes its weights");
  }
  const SafetensorsFile tensors(directory / kTensors);
  constexpr int64_t kPiece = int64_t{1} << 22;
  std::optional<PieceWriter> writer;
  size_t used = 0;
  for (Parameter& parameter : store.all()) {
    if (!parameter.trainable()) continue;
    if (!writer) writer.emplace(parameter.value().device, kPiece * sizeof(float));
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
      for (int64_t first = 0; first < to.slice.count; first += kPiece) {
        const int64_t count = std::min(kPiece, to.slice.count - first), in_file = to.slice.begin + first;
        std::byte* elements = writer->open(to.here, first, count);
        tensors.read(*entry, static_cast<uint64_t>(in_file * size), elements, static_cast<uint64_t>(count * size));
        if (!to.exact) continue;
        const auto* values = reinterpret_cast<const float*>(elements);
        auto* rounded = reinterpret_cast<BFloat16*>(writer->open(parameter.value(), in_file, count));
        for (int64_t i = 0; i < count; ++i) rounded[i] = BFloat16(values[i]);
      }
      ++used;
    }
  }
  if (writer) writer->finish();
  if (used != tensors.entries().size()) {
    throw UserError("the training state has parameters or moments that this run does not train or keep",
                    tensors.path().string(), "resume with the same finetuning_type, LoRA, freezing and optim options");
  }
  return *state;
}

}  // namespace hone
