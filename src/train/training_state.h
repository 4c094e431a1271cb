// What a checkpoint holds besides the model so that a stopped run goes on as if it had not stopped.
#pragma once

#include <filesystem>
#include <optional>

#include "core/json.h"
#include "params/parameter_store.h"
#include "session/run_config.h"
#include "weights/manifest.h"
#include "weights/tensor_pieces.h"

namespace hone {

/// Everything that is not a tensor.
struct RunState {
  int64_t step = 0;            ///< optimizer steps done; with first_data_step, the position in the data
  int64_t optimizer_step = 0;  ///< steps that were not skipped (Adam's t)
  int64_t num_tokens = 0, num_supervised_tokens = 0, num_samples = 0;
  double best_metric = 0;
  int64_t best_step = -1;                 ///< -1: no evaluation yet
  int64_t evals_without_improvement = 0;  ///< in a row, by early stopping's measure
  int64_t first_data_step = 0;            ///< the step at which the data began anew (ignore_data_skip)
  uint64_t seed = 0;
  Json data = Json::object();  ///< what is trained on (train/data_identity.h): resuming on other data is refused
  int64_t total_steps = 0;
  Json router_watch = nullptr;  ///< RouterWatch::state()
  int64_t branch = 0;           ///< how often the run went back to an older checkpoint (CheckpointFolder::branch_from)
};

/// Writes training_state.safetensors (NAME/m, NAME/v and NAME/master of every trainable parameter in the formats they
/// have, NAME/m_scales and NAME/v_scales of 8-bit moments, NAME/v_rows and NAME/v_columns of factored ones) and
/// training_state.json into an existing folder. The tensors are whole, whatever ranks keep parts of them: `reader` gets
/// them. `checksums`, unless null, is told that of the tensors' file.
void save_training_state(const std::filesystem::path& directory, const ParameterStore& store, const RunState& state,
                         StateReader& reader, FileChecksums* checksums = nullptr);
inline void save_training_state(const std::filesystem::path& directory, const ParameterStore& store,
                                const RunState& state) {
  WholeStateReader reader;
  save_training_state(directory, store, state, reader);
}

/// Bytes that a checkpoint of this run has at least: values, and with AdamW its moments. Where only the final model is
/// saved, its values.
int64_t least_saved_bytes(const ParameterStore& store, const RunConfig& config);

/// Only what is not a tensor; empty if the folder has no training state. UserError if it is of another version,
/// damaged, or says what no run can (negative steps, more updates than steps).
std::optional<RunState> read_run_state(const std::filesystem::path& directory);

/// Reads both back: moments, masters and the values that follow from them are bitwise those of the run that stopped.
/// Of what is sharded a rank reads its own elements; the values of the others are theirs to tell
/// (Engine::gather_values). UserError if the folder has no state, or one of another version, or of other trainable
/// parameters. `ledger`, unless null, is told what is read.
RunState load_training_state(const std::filesystem::path& directory, ParameterStore& store,
                             ReadLedger* ledger = nullptr);

}  // namespace hone
