// A sweep file: the runs that hone sweep trains (docs/sweep.md describes the format).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "config/config_reader.h"

namespace hone {

/// A key with its value as a word of the command line.
using SweepSetting = std::pair<std::string, std::string>;

struct SweepRun {
  std::string name;                    ///< its folder: "learning_rate-1e-4_lora_r-8"
  std::vector<SweepSetting> settings;  ///< in which it differs from the base
};

struct SweepFile {
  std::string base;                ///< a configuration; "": keys alone
  std::vector<SweepSetting> keys;  ///< stated for all runs
  std::vector<SweepRun> runs;      ///< the grid, whose last key varies fastest, then those of `runs`
  int64_t ranks = 1;               ///< processes of a run
  bool stop_worse = false;         ///< whether runs end early (StopRule)
  int64_t stop_worse_after = 0;    ///< not before this step
  std::vector<int64_t> rungs;      ///< successive halving: the steps at which a part goes on; none: without
  double keep = 0.5;               ///< that part

  /// The overrides of a run: those of all, `overrides` of the command line, its own.
  std::vector<std::string> words(const SweepRun& run, const std::vector<std::string>& overrides) const;
};

/// Reads a YAML or JSON file. Throws UserError (file:line) for what is not a sweep: unknown sections (with near names),
/// values of the wrong kind, keys that hone train does not know or that a sweep states itself (output_dir, …), a key
/// that is varied and also stated by `overrides`, two runs alike or of one name, more than 1,000, none at all.
SweepFile read_sweep_file(const std::string& path, const std::vector<std::string>& overrides);

/// The same from a configuration's tree.
SweepFile parse_sweep(const ConfigNode& root, const std::vector<std::string>& overrides);

}  // namespace hone
