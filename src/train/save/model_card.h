// The card of a saved model or adapter: README.md with the metadata that the Hugging Face hub and PEFT read, and what
// the run did. It has no times and names no folders, so that equal runs write equal cards.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "train/plan/described_run.h"
#include "train/save/training_state.h"
#include "weights/adapter.h"

namespace hone {

/// A model as a card names it.
struct CardModel {
  std::string hub_id;  ///< ORG/NAME; "" for a folder that is not of the hub's cache
  std::string title;   ///< that, or the folder's name
};
CardModel card_model(const std::string& name_or_path);

/// Writes the card of a run's model, or of its adapter in a layout, as of `state`. A card of the folder that it will be
/// moved to is left to weights/model_folder.h.
void write_run_card(const std::filesystem::path& directory, const DescribedRun& run, const RunState& state,
                    std::optional<AdapterLayout> adapter);

/// Writes the card of a base with an adapter merged into it, with what the adapter's own card says of its training.
void write_merged_card(const std::filesystem::path& directory, const std::string& base,
                       const std::filesystem::path& adapter);

}  // namespace hone
