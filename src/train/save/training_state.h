// Stores what a checkpoint needs besides the model so that a stopped run resumes exactly.
#pragma once

#include <filesystem>
#include <optional>

#include "config/run_config.h"
#include "core/text/json_value.h"
#include "params/parameter_store.h"
#include "weights/tensor_file.h"

namespace hone {

/// The state that is not in tensors.
struct RunState {
  int64_t step = 0;             ///< optimizer steps done; with first_data_step, the position in the data
  int64_t optimizer_step = 0;   ///< steps that were not skipped (Adam's t)
  double epoch = 0;             ///< the data's, after `step`
  bool evaluation_due = false;  ///< the one after `step` has not finished: a survivor saved this state
  int64_t num_tokens = 0, num_supervised_tokens = 0, num_samples = 0;
  double best_metric = 0;
  int64_t best_step = -1;                 ///< -1: no evaluation yet
  int64_t evals_without_improvement = 0;  ///< consecutive, for early stopping
  int64_t first_data_step = 0;            ///< the step at which the data began anew (ignore_data_skip)
  uint64_t seed = 0;
  JsonObject data = {};  ///< identity of the data (train/plan/data_identity.h): resuming with other data is refused
  /// Identity of what an adapter belongs to (train/plan/model_identity.h); null: written before there was one.
  JsonValue model = {};
  int64_t total_steps = 0;
  JsonValue router_watch = {};  ///< RouterWatch::state()
  int64_t branch = 0;           ///< how often the run went back to an older checkpoint (CheckpointFolder::branch_from)
  /// {"first": {"step": S, "eval_loss": L}, "best": …, "last": …}: evaluations so far.
  JsonObject evaluations = {};
};

/// training_state.safetensors: NAME/m, NAME/v and NAME/master of every trainable parameter in their formats,
/// NAME/m_scales and NAME/v_scales of 8-bit moments, NAME/v_rows and NAME/v_columns of factored ones; not sharded. The
/// store must outlive the result.
TensorFile training_state_file(const ParameterStore& store);
/// Writes training_state.json into an existing folder.
void write_run_state(const std::filesystem::path& directory, const RunState& state);
/// Writes both files; the state is whole on this rank. `checksums`, unless null, receives that of the tensor file.
void save_training_state(const std::filesystem::path& directory, const ParameterStore& store, const RunState& state,
                         FileChecksums* checksums = nullptr);

/// Minimum bytes of a checkpoint of this run: values, and with AdamW its moments. If only the final model is saved, its
/// values.
int64_t least_saved_bytes(const ParameterStore& store, const RunConfig& config);

/// Reads only training_state.json; empty if the folder has no training state. UserError if it has another version, is
/// damaged, or is impossible (negative steps, more updates than steps).
std::optional<RunState> read_run_state(const std::filesystem::path& directory);

/// Reads both files: moments, masters and the values derived from them are bitwise those of the stopped run. Of
/// parameters whose state ranks share, a rank reads its own elements; Engine::gather_values() brings the values of the
/// rest. UserError if the folder has no state,
/// or one of another version or of other trainable parameters. `ledger`, unless null, records what is read.
RunState load_training_state(const std::filesystem::path& directory, ParameterStore& store,
                             FileLedger* ledger = nullptr);

}  // namespace hone
