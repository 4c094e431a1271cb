// Data sets as other tools name them → entries of `datasets`.
#pragma once

#include <string>

#include "app/convert_config/translation.h"

namespace hone {

/// Where names of data sets are looked up.
struct DatasetSource {
  const Tool& tool;
  const ConfigNode& root;     ///< the whole source: LLaMA-Factory's dataset_dir and max_samples stand beside `dataset`
  const std::string& folder;  ///< of the source
};

/// `value` (a path, paths, entries, or names of LLaMA-Factory's dataset_info.json) as a list of entries with our keys.
/// What cannot be translated is added to `result`.
ConfigNode dataset_entries(const DatasetSource& source, const ConfigNode& value, Translation& result);

}  // namespace hone
