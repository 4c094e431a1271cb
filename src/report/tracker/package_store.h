// Trackers that have a client in Python alone: Weights & Biases, Trackio. A process of Python beside the run uses their
// own package; the run itself has no Python.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "report/tracker/tracker_store.h"

namespace hone {

struct PackageOptions {
  std::string package;                                        ///< wandb or trackio
  std::string project;                                        ///< "" = the package's default, or what its variables say
  std::string run_name;                                       ///< "" = one of the package's own
  std::string run_id;                                         ///< a run to continue; "": a new one
  std::string output_dir;                                     ///< the run's: where the package keeps its files
  std::vector<std::pair<std::string, std::string>> settings;  ///< further arguments of the package's init()
  std::vector<std::string> tags;
  std::vector<std::pair<std::string, std::string>> params;  ///< the run's configuration
};

/// The interpreter that has the packages: HONE_PYTHON; of the environment that is active (VIRTUAL_ENV, CONDA_PREFIX) or
/// that the program is installed in; else python3 of the PATH.
std::string python_of_trackers();

/// Throws UserError at `key` if that interpreter does not find the package, with the line that installs it.
void require_package(const std::string& package, const std::string& key);

/// write_tracker_run() to output_dir, of the run that the package has opened.
void write_package_run(const PackageOptions& options, const std::string& run_id);
/// Sets run_id from that file, if it is unset.
void continue_package_run(PackageOptions& options);

/// Starts no process yet. The store's calls are not for several threads, except cancel().
std::unique_ptr<TrackerStore> make_package_store(const PackageOptions& options);

}  // namespace hone
